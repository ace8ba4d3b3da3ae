// Whether this ddprun runs inside a worker of another one. Variables alone do not say so: sbatch, at and a
// copied environment carry a worker's variables into other jobs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace ddprun::launcher {

/// DDPRUN_LAUNCHER for the workers of a ddprun: "SLURM_JOB_ID:PID_NAMESPACE:PID:START". Empty parts are
/// unknown.
std::string launcher_mark(pid_t ddprun, const std::optional<std::string>& slurm_job);

/// Whether the ddprun with this mark is an ancestor of this process, in the same Slurm job. In another PID
/// namespace, where an ancestor cannot be seen, the Slurm job decides alone.
bool is_inside_job_of(const std::string& mark, const std::optional<std::string>& slurm_job);

/// Removes what this process has inherited from a worker of a job that it is not part of: DDPRUN_JOB_ID and
/// DDPRUN_LAUNCHER, and TORCHELASTIC_ERROR_FILE and TORCHELASTIC_TIMER_FILE if they name that job's files.
void forget_other_job();

}  // namespace ddprun::launcher
