#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

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

}  // namespace ddprun::launcher
