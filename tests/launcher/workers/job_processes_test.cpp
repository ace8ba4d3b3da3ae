#include "launcher/workers/job_processes.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::string_literals;

TEST_CASE("a process is of a job that its environment names, unless it is of another Slurm job",
          "[job_processes]") {
  CHECK(is_of_job("A=1\0DDPRUN_JOB_ID=outer/own\0B=2\0"s, "own", {}));
  CHECK(is_of_job("DDPRUN_JOB_ID=own/inner\0"s, "own", "7"));  // it may have cleared Slurm's variables
  CHECK(is_of_job("SLURM_JOB_ID=7\0DDPRUN_JOB_ID=own\0"s, "own", "7"));
  CHECK_FALSE(is_of_job("SLURM_JOB_ID=8\0DDPRUN_JOB_ID=own\0"s, "own", "7"));
  CHECK_FALSE(is_of_job("SLURM_JOB_ID=8\0DDPRUN_JOB_ID=own\0"s, "own", {}));
  CHECK_FALSE(is_of_job("DDPRUN_JOB_ID=other\0X=own\0"s, "own", {}));
  CHECK_FALSE(is_of_job("", "own", {}));
}

}  // namespace
}  // namespace ddprun::launcher
