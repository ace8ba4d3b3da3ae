#include "launcher/workers/job_processes.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/host/processes.h"

namespace ddprun::launcher {
namespace {

#ifdef SYS_select
constexpr long kSelect = SYS_select;
#else
constexpr long kSelect = SYS_pselect6;
#endif

std::string read_proc(pid_t pid, const char* file) {
  return read_or_empty("/proc/" + std::to_string(pid) + "/" + file);
}

/// nullopt for a missing process or a zombie.
std::optional<ProcessStat> living(pid_t pid) {
  const auto process = stat_of(pid);
  return process && process->lives() ? process : std::nullopt;
}

/// The value of a variable in a process's environment.
std::optional<std::string> value_in(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& variable : environment)
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  return {};
}

/// Bit S - 1 stands for signal S.
///
/// text  of /proc/PID/status
unsigned long long signals_in(const std::string& text, std::initializer_list<const char*> sets) {
  unsigned long long signals = 0;
  for (const char* name : sets)
    if (const auto at = text.find(name); at != std::string::npos)
      signals |= std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 16);
  return signals;
}

/// The system call that a thread is in.
int call_of(pid_t process, int thread) {
  const std::string task = "task/" + std::to_string(thread) + "/syscall";
  return std::atoi(read_proc(process, task.c_str()).c_str());
}

/// Whether the thread waits in sigwait() or sigtimedwait() for this signal.
bool waits_for(pid_t process, int thread, int signal) {
  const std::string task = "task/" + std::to_string(thread) + "/syscall";
  long call = -1;
  unsigned long set = 0;  // the address of the signals
  std::sscanf(read_proc(process, task.c_str()).c_str(), "%ld %lx", &call, &set);
  if (call != SYS_rt_sigtimedwait) return false;
  unsigned long long signals = 0;
  const iovec own{&signals, sizeof signals}, theirs{reinterpret_cast<void*>(set), sizeof signals};
  const bool known = ::process_vm_readv(process, &own, 1, &theirs, 1, 0) == sizeof signals;
  return !known || (signals >> (signal - 1) & 1) != 0;
}

bool is_in(const std::string& status, const char* set, int signal) {
  return (signals_in(status, {set}) >> (signal - 1) & 1) != 0;
}

/// Whether the process has a signalfd for this signal.
bool has_signalfd(pid_t pid, int signal) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  std::error_code unreadable;
  for (const int fd : numbers_in(folder))
    if (std::filesystem::read_symlink(folder + "/" + std::to_string(fd), unreadable) ==
            "anon_inode:[signalfd]" &&
        is_in(read_proc(pid, ("fdinfo/" + std::to_string(fd)).c_str()), "sigmask:", signal))
      return true;
  return false;
}

/// How a process takes a signal, from one look at each of its threads. A second look may see another moment:
/// a shell that waits for its child blocks all signals again and again, and none in between.
struct Reception {
  bool known = false;  ///< gVisor does not tell
  bool ignored = false, caught = false;
  bool blocked = false;    ///< every thread blocks the signal or waits for it: any other would get it
  bool awaited = false;    ///< by a thread, where the kernel does not show it as blocked, or by a signalfd
  bool momentary = false;  ///< the first thread blocks SIGSEGV as well

  /// Whether the process reacts to the signal itself. One that only blocks it does not: `unshare --fork`
  /// blocks it and waits for its child.
  bool handled() const { return caught || (blocked && awaited); }
};

Reception reception(pid_t pid, int signal) {
  const std::string status = read_proc(pid, "status");
  Reception found{.known = status.find("\nSigCgt:") != std::string::npos || status.empty(),
                  .ignored = is_in(status, "\nSigIgn:", signal),
                  .caught = is_in(status, "\nSigCgt:", signal)};
  if (found.caught) return found;
  const auto threads = numbers_in("/proc/" + std::to_string(pid) + "/task");
  found.blocked = !threads.empty() && std::ranges::all_of(threads, [&](int thread) {
    const std::string task = read_proc(pid, ("task/" + std::to_string(thread) + "/status").c_str());
    if (thread == pid) found.momentary = is_in(task, "\nSigBlk:", SIGSEGV);
    if (is_in(task, "\nSigBlk:", signal)) return true;
    const bool waits = waits_for(pid, thread, signal);
    found.awaited = found.awaited || waits;
    return waits;
  });
  found.awaited = found.blocked && (found.awaited || has_signalfd(pid, signal));
  return found;
}

bool handles(pid_t pid, int signal) { return reception(pid, signal).handled(); }

/// As the kernel lists them, zombies included.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  bool listed = false;  // not if the kernel lacks CONFIG_PROC_CHILDREN
  const std::string tasks = "/proc/" + std::to_string(parent) + "/task";
  // Of ddprun only the first thread starts processes and inherits orphans.
  for (const int task : parent == ::getpid() ? std::vector<int>{parent} : numbers_in(tasks)) {
    std::ifstream list(tasks + "/" + std::to_string(task) + "/children");
    listed = listed || list.is_open();
    for (pid_t pid = 0; list >> pid;) found.push_back(pid);
  }
  if (listed) return found;
  for (const pid_t pid : numbers_in("/proc"))
    if (const auto process = living(pid); process && process->parent == parent) found.push_back(pid);
  return found;
}

/// They may handle a signal and still rely on it reaching their child: a shell acts on it only once the child
/// has ended, and uv takes SIGINT for one that the terminal has sent to both.
bool is_shell(pid_t pid) {
  static const std::set<std::string> names = {"sh",    "bash", "dash", "ash",  "busybox", "ksh",
                                              "ksh93", "mksh", "zsh",  "fish", "uv"};
  std::error_code unreadable;
  return names.count(
             std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", unreadable).filename()) >
         0;
}

/// Whether it needs the signal itself, if no child of its is meant.
bool acts(pid_t pid, int signal) { return handles(pid, signal) && !is_shell(pid); }

/// The only child of a program that waits for it, if both handle SIGINT: Python's subprocess.run() kills the
/// child a quarter of a second after it has got SIGINT itself. One that ignores SIGINT, such as the resource
/// tracker of multiprocessing, does not count.
std::optional<pid_t> awaited_program(pid_t pid, pid_t group, int signal) {
  if (signal != SIGINT) return {};
  const int call = call_of(pid, pid);
  if ((call != SYS_wait4 && call != SYS_waitid) || !acts(pid, signal)) return {};
  std::vector<pid_t> found = children_of(pid);
  std::erase_if(found, [&](pid_t child) {
    return !is_member(child, group) || !(handles(child, signal) || would_die_of(child, signal));
  });
  if (found.size() != 1 || !(handles(found[0], signal) || is_shell(found[0]))) return {};
  return found[0];
}

}  // namespace

bool is_of_job(const std::string& environment, const std::string& job_id,
               const std::optional<std::string>& slurm_job,
               const std::function<bool(const std::string&)>& is_of_step) {
  const auto variables = split(environment, '\0');
  if (value_in(variables, kJobIdVariable).value_or("").find(job_id) == std::string::npos) return false;
  const auto theirs = value_in(variables, "SLURM_JOB_ID");
  return !theirs || theirs == slurm_job || !is_of_step(*theirs);
}

std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (const auto number = parse_integer(entry.path().filename().string(), 0, INT_MAX))
      numbers.push_back(*number);
  return numbers;
}

std::map<pid_t, std::vector<pid_t>> process_groups() {
  std::map<pid_t, std::vector<pid_t>> groups;
  for (const pid_t pid : numbers_in("/proc"))
    if (const auto process = living(pid)) groups[process->group].push_back(pid);
  return groups;
}

bool is_member(pid_t pid, pid_t group) {
  const auto process = living(pid);
  return process && process->group == group;
}

bool acts_alone(pid_t leader, int signal) {
  return acts(leader, signal) && !awaited_program(leader, leader, signal);
}

std::vector<pid_t> program_of(pid_t leader, int signal) {
  return acts_alone(leader, signal) ? std::vector<pid_t>{leader} : program_below(leader, signal);
}

std::vector<pid_t> program_below(pid_t leader, int signal, std::vector<NotAsked>* not_asked) {
  std::vector<pid_t> found = {leader};
  for (std::size_t i = 0; i < found.size(); ++i) {
    while (const auto child = awaited_program(found[i], leader, signal)) {
      if (not_asked != nullptr) not_asked->push_back({found[i], *child});
      found[i] = *child;
    }
    const pid_t pid = found[i];
    if (pid != leader && acts(pid, signal)) continue;
    for (const pid_t child : children_of(pid))
      if (is_member(child, leader)) found.push_back(child);
  }
  // A program that acts on the signal may need what would die of it, such as tee at the end of its pipe.
  const auto acting = [&](pid_t pid) { return acts(pid, signal); };
  if (found.size() > 1 && std::ranges::any_of(found, acting))
    std::erase_if(found, [&](pid_t pid) {
      return pid != leader && !acting(pid) && !is_shell(pid) && would_die_of(pid, signal);
    });
  const auto is_asked = [&](pid_t child) { return is_member(child, leader) && !ignores(child, signal); };
  std::erase_if(found, [&](pid_t pid) {
    if (!ignores(pid, signal)) return false;
    if (pid != leader && signal != SIGTERM && std::ranges::none_of(children_of(pid), is_asked)) return true;
    if (not_asked != nullptr) not_asked->push_back({pid, 0});
    return false;
  });
  return found;
}

std::vector<pid_t> processes_of_job(const std::string& job_id) {
  std::vector<pid_t> found;
  const pid_t own_step = slurm_step_of(ancestors_of(::getpid()));
  for (const pid_t pid : numbers_in("/proc")) {
    const auto is_of_step = [&](const std::string& job) {
      const pid_t step = slurm_step_of(ancestors_of(pid));
      return (step != 0 && step != own_step) || is_cgroup_of_slurm_job(read_proc(pid, "cgroup"), job);
    };
    if (pid == ::getpid() ||
        !is_of_job(read_proc(pid, "environ"), job_id, process_env("SLURM_JOB_ID"), is_of_step))
      continue;
    // The guard of an inner job kills that job's processes, then exits.
    if (const auto process = living(pid); process && process->name != "ddprun-guard") found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> children(const std::function<bool(pid_t)>& is_wanted) {
  std::vector<pid_t> found = children_of(::getpid());
  std::erase_if(found, [&](pid_t pid) { return !is_wanted(pid) || !living(pid); });
  return found;
}

bool reads_terminal(const std::vector<pid_t>& processes) {
  // Not ttyname(): a terminal of another mount namespace has no path here, but this link all the same.
  std::error_code unreadable;
  const auto terminal = std::filesystem::read_symlink("/proc/self/fd/0", unreadable);
  for (const pid_t pid : processes) {
    const std::string process = "/proc/" + std::to_string(pid);
    if (std::filesystem::read_symlink(process + "/fd/0", unreadable) != terminal) continue;
    for (const int task : numbers_in(process + "/task")) {
      long call = -1, argument = -1;  // "NUMBER 0xARGUMENT ...", or "running"
      std::sscanf(read_or_empty(process + "/task/" + std::to_string(task) + "/syscall").c_str(), "%ld %li",
                  &call, &argument);
      // The descriptor; or one more than the highest one that it waits for, as Python's prompt does.
      if (call == SYS_read && argument == 0) return true;
      if ((call == SYS_pselect6 || call == kSelect) && argument == 1) return true;
    }
  }
  return false;
}

void reap_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

bool ignores(pid_t pid, int signal) { return is_in(read_proc(pid, "status"), "\nSigIgn:", signal); }

bool would_die_of(pid_t pid, int signal) {
  const auto spared = signals_in(read_proc(pid, "status"), {"\nSigBlk:", "\nSigIgn:", "\nSigCgt:"});
  return !ends_nobody(signal) && (spared >> (signal - 1) & 1) == 0;
}

bool ends_nobody(int signal) { return signal == SIGWINCH || signal == SIGCONT || signal == SIGURG; }

bool survives(pid_t pid, int signal) {
  if (ends_nobody(signal)) return true;
  const Reception found = reception(pid, signal);
  return !found.known || found.ignored || found.handled() || (found.blocked && !found.momentary);
}

bool is_about_to_exec(pid_t pid) {
  const auto process = stat_of(pid);
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const auto ticks = static_cast<unsigned long long>(::sysconf(_SC_CLK_TCK)),
             is = static_cast<unsigned long long>(now.tv_sec) * ticks +
                  static_cast<unsigned long long>(now.tv_nsec) * ticks / 1'000'000'000;
  return process && is < process->start + ticks / 5 &&
         read_proc(pid, "cmdline") == read_proc(process->parent, "cmdline");
}

std::optional<ProcessUse> process_use(pid_t pid) {
  const auto process = living(pid);
  if (!process) return std::nullopt;
  return ProcessUse{
      static_cast<double>(process->user + process->system) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
      process->pages * ::sysconf(_SC_PAGESIZE), process->stopped()};
}

}  // namespace ddprun::launcher
