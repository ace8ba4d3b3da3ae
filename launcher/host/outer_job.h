// Whether this ddprun runs inside a worker of another one. Variables alone do not say so: sbatch, at and a
// copied environment carry a worker's variables into other jobs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// DDPRUN_LAUNCHER for the workers of a ddprun: "SLURM_JOB_ID:PID_NAMESPACE:PID:START". Empty parts are
/// unknown.
std::string launcher_mark(pid_t ddprun, const std::optional<std::string>& slurm_job);

/// A process above another one.
struct Ancestor {
  pid_t pid = 0;
  unsigned long long start = 0;  ///< in ticks since the host started
  std::string name;
};

/// From its parent up.
std::vector<Ancestor> ancestors_of(pid_t process);

/// The pid of the slurmstepd that started the process with these ancestors as a part of a step: the nearest
/// one among them, with no process with the pid `end` below it. 0: none
pid_t slurm_step_of(const std::vector<Ancestor>& ancestors, pid_t end = 0);

/// Whether /proc/PID/cgroup places a process in this Slurm job: a daemon has no slurmstepd above it any more.
bool is_cgroup_of_slurm_job(const std::string& cgroup, const std::string& job);

/// Whether the ddprun with this mark is one of these ancestors, and no Slurm step lies between. In another
/// PID namespace, where an ancestor cannot be seen, the Slurm job decides alone.
bool is_inside_job_of(const std::string& mark, const std::optional<std::string>& slurm_job,
                      const std::vector<Ancestor>& ancestors);

/// Removes what this process has inherited from a worker of a job that it is not part of: DDPRUN_JOB_ID and
/// DDPRUN_LAUNCHER, and TORCHELASTIC_ERROR_FILE and TORCHELASTIC_TIMER_FILE if they name that job's files.
void forget_other_job();

}  // namespace ddprun::launcher
