#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The numbers among the names in a folder of /proc: processes, threads or descriptors; none without /proc.
std::vector<int> numbers_in(const std::string& folder);

/// The living processes of this machine by their group. Slow: looks at every process.
std::map<pid_t, std::vector<pid_t>> process_groups();

/// Whether the process lives and belongs to this process group.
bool is_member(pid_t pid, pid_t group);

/// The processes that a signal for this group's leader is meant for: the leader and, as long as one only
/// stands for the program it has started, the members of the group that it has started. That is so for
/// shells, and for whatever has no handler for the signal and does not wait for it: if it dies of it, its
/// children are next in any case. Beside a member that handles the signal, those that would die of it are not
/// meant: it may need them as it saves. SIGINT is meant for the only child, which
/// handles it, instead of a program that waits for the child.
std::vector<pid_t> program_of(pid_t leader, int signal);

/// A process of a program that a signal does not reach at once.
struct NotAsked {
  pid_t pid;
  pid_t child;  ///< gets the signal in its place, for the process waits for it; 0: the process ignores it
  std::optional<std::chrono::steady_clock::time_point> child_gone = {};  ///< when that was seen
};

/// The same for a leader that is known not to act alone. Leaves out what ignores the signal, unless that is
/// SIGTERM, and has no child that does not, as what a shell has started in the background ignores SIGINT.
///
/// not_asked  null, or gets those that the signal does not reach now: they may go on when their child has
/// ended
std::vector<pid_t> program_below(pid_t leader, int signal, std::vector<NotAsked>* not_asked = nullptr);

/// Whether the signal is meant for the leader of a process group only, and not for those that it has started.
/// Quick.
bool acts_alone(pid_t leader, int signal);

/// Whether a process with this environment, as in /proc, belongs to the job: it names the job, and is not of
/// another Slurm job, which a worker has submitted and which inherited the name.
///
/// is_of_step  whether Slurm started the process for this job: a worker may set SLURM_JOB_ID itself
bool is_of_job(const std::string& environment, const std::string& job_id,
               const std::optional<std::string>& slurm_job,
               const std::function<bool(const std::string& slurm_job)>& is_of_step);

/// The living processes whose initial environment names this job, except ourselves and guards. Slow: looks at
/// every process.
std::vector<pid_t> processes_of_job(const std::string& job_id);

/// Our living children that are wanted. Looks more closely only at those.
std::vector<pid_t> children(const std::function<bool(pid_t)>& is_wanted);

/// Whether one of these processes waits for input from the terminal that is our standard input and its own.
bool reads_terminal(const std::vector<pid_t>& processes);

/// Reaps every child that has ended. Only while no worker runs.
void reap_children();

bool ignores(pid_t pid, int signal);

/// Whether the signal's default action awaits the process: it neither handles, blocks nor ignores it.
bool would_die_of(pid_t pid, int signal);
/// Whether the signal's default action is harmless.
bool ends_nobody(int signal);
/// Whether the process lives on with the signal: it handles, ignores or blocks it, or the kernel does not
/// tell (gVisor). Who blocks SIGSEGV too does so only for a moment, while it starts a thread or a program.
bool survives(pid_t pid, int signal);

/// Whether the process was forked in the last fifth of a second, and may be about to start its program: until
/// then it seems to have its parent's handlers.
bool is_about_to_exec(pid_t pid);

/// What a process has used, according to /proc.
struct ProcessUse {
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0;
  bool stopped = false;  ///< by SIGSTOP or a debugger
};

/// nullopt: it is gone.
std::optional<ProcessUse> process_use(pid_t pid);

}  // namespace ddprun::launcher
