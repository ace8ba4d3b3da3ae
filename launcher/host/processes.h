// Whether this ddprun runs inside a worker of another one. Variables alone do not say so: sbatch, at and a
// copied environment carry a worker's variables into other jobs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// A process according to /proc/PID/stat.
struct ProcessStat {
  std::string name;
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
  unsigned flags = 0;
  unsigned long long user = 0, system = 0;  ///< CPU time, in ticks
  unsigned long long start = 0;             ///< in ticks since the host started
  long long pages = 0;                      ///< in memory

  bool lives() const { return state != 'Z' && state != 'X'; }
  /// Its end has begun, and is not yet reported: the kernel's PF_EXITING, PF_DUMPCORE, PF_SIGNALED.
  bool is_ending() const { return (flags & 0x604) != 0; }
  bool stopped() const { return state == 'T' || state == 't'; }  ///< by SIGSTOP or a debugger
};

/// line  "PID (NAME) STATE PPID ..."; nullopt: it is no such line
std::optional<ProcessStat> parse_stat(const std::string& line);

/// nullopt: there is no such process.
std::optional<ProcessStat> stat_of(pid_t pid);

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

/// Removes what this process has inherited from a worker of a job that it is not part of: DDPRUN_JOB_ID,
/// DDPRUN_LAUNCHER and DDPRUN_COMMAND, and TORCHELASTIC_ERROR_FILE and TORCHELASTIC_TIMER_FILE if they name
/// that job's files.
void forget_other_job();

}  // namespace ddprun::launcher
