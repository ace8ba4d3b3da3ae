#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The numbers among the names in a folder of /proc: processes, threads or descriptors; none without /proc.
std::vector<int> numbers_in(const std::string& folder);

/// The living members of a process group. Slow: looks at every process.
std::vector<pid_t> group_members(pid_t group);

/// Whether a process with this environment, as in /proc, belongs to the job: it names the job, and no other
/// Slurm job, which a worker has submitted and which inherited the name.
bool is_of_job(const std::string& environment, const std::string& job_id,
               const std::optional<std::string>& slurm_job);

/// The living processes whose initial environment names this job, except ourselves and guards. Slow: looks at
/// every process.
std::vector<pid_t> processes_of_job(const std::string& job_id);

/// Our living children that are wanted. Looks more closely only at those.
std::vector<pid_t> children(const std::function<bool(pid_t)>& is_wanted);

/// Whether the signal's default action awaits the process: it neither handles, blocks nor ignores it.
bool would_die_of(pid_t pid, int signal);

/// What a process has used, according to /proc.
struct ProcessUse {
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0;
  bool stopped = false;  ///< by SIGSTOP or a debugger
};

/// nullopt: it is gone.
std::optional<ProcessUse> process_use(pid_t pid);

}  // namespace ddprun::launcher
