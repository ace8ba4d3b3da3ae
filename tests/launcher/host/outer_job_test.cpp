#include "launcher/host/outer_job.h"

#include <unistd.h>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("a process is inside the job of an ancestor, in the same Slurm job", "[outer_job]") {
  CHECK(is_inside_job_of(launcher_mark(::getppid(), {}), {}));
  CHECK(is_inside_job_of(launcher_mark(::getppid(), "7"), "7"));
  CHECK_FALSE(is_inside_job_of(launcher_mark(::getppid(), "7"), "8"));
  CHECK_FALSE(is_inside_job_of(launcher_mark(::getppid(), "7"), {}));
  CHECK_FALSE(is_inside_job_of(launcher_mark(::getppid(), {}), "8"));
}

TEST_CASE("a process that is no ancestor, or has its number now, is another job's", "[outer_job]") {
  CHECK_FALSE(is_inside_job_of(launcher_mark(::getpid(), {}), {}));
  CHECK_FALSE(is_inside_job_of(launcher_mark(::getppid(), {}) + "0", {}));  // started at another time
  for (const char* mark : {"", ":", ":::", "x", "7:1:2", ":1:x:3", ":1:-1:3", "::0:0"})
    CHECK_FALSE(is_inside_job_of(mark, {}));
}

TEST_CASE("in another PID namespace the Slurm job decides", "[outer_job]") {
  CHECK(is_inside_job_of("7:1:2:3", "7"));
  CHECK_FALSE(is_inside_job_of("7:1:2:3", "8"));
}

}  // namespace
}  // namespace ddprun::launcher
