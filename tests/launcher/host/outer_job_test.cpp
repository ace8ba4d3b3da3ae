#include "launcher/host/processes.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

/// Whether this process is inside the job of a ddprun with this mark.
bool is_inside(const std::string& mark, const std::optional<std::string>& slurm_job) {
  return is_inside_job_of(mark, slurm_job, ancestors_of(::getpid()));
}

TEST_CASE("a process is inside the job of an ancestor, whatever Slurm job its variables name",
          "[outer_job]") {
  CHECK(is_inside(launcher_mark(::getppid(), {}), {}));
  CHECK(is_inside(launcher_mark(::getppid(), "7"), "7"));
  CHECK(is_inside(launcher_mark(::getppid(), "7"), "8"));
  CHECK(is_inside(launcher_mark(::getppid(), "7"), {}));
  CHECK(is_inside(launcher_mark(::getppid(), {}), "8"));
}

TEST_CASE("a step of Slurm that an ancestor has started is another job", "[outer_job]") {
  const auto above = ancestors_of(::getpid());
  std::vector<Ancestor> inside = above, outside = above;
  inside.insert(inside.begin(), {7, 7, "slurmstepd"});
  outside.push_back({7, 7, "slurmstepd"});
  const std::string mark = launcher_mark(::getppid(), "7");
  CHECK_FALSE(is_inside_job_of(mark, "8", inside));
  CHECK_FALSE(is_inside_job_of(mark, "7", inside));
  CHECK(is_inside_job_of(mark, "8", outside));
  CHECK(slurm_step_of(inside) == 7);
  CHECK(slurm_step_of(outside) == 7);
  CHECK(slurm_step_of(outside, ::getppid()) == 0);
}

TEST_CASE("a cgroup names the Slurm job that it is of", "[outer_job]") {
  CHECK(is_cgroup_of_slurm_job("0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0\n", "8"));
  CHECK(is_cgroup_of_slurm_job("9:cpuset:/slurm/uid_1/job_8\n", "8"));
  CHECK_FALSE(is_cgroup_of_slurm_job("0::/system.slice/slurmstepd.scope/job_80/step_0\n", "8"));
  CHECK_FALSE(is_cgroup_of_slurm_job("0::/user.slice\n", "8"));
}

TEST_CASE("a process that is no ancestor, or has its number now, is another job's", "[outer_job]") {
  CHECK_FALSE(is_inside(launcher_mark(::getpid(), {}), {}));
  CHECK_FALSE(is_inside(launcher_mark(::getppid(), {}) + "0", {}));  // started at another time
  for (const char* mark : {"", ":", ":::", "x", "7:1:2", ":1:x:3", ":1:-1:3", "::0:0"})
    CHECK_FALSE(is_inside(mark, {}));
}

TEST_CASE("in another PID namespace the Slurm job decides", "[outer_job]") {
  CHECK(is_inside("7:1:2:3", "7"));
  CHECK_FALSE(is_inside("7:1:2:3", "8"));
}

}  // namespace
}  // namespace ddprun::launcher
