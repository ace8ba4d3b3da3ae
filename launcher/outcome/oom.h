#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// The file that counts the OOM kills in a process's cgroup: memory.events (v2) or memory.oom_control (v1).
///
/// cgroup      the text of /proc/PID/cgroup
/// mountinfo   the text of /proc/PID/mountinfo
/// returns     nullopt if that cgroup does not count memory, or is not mounted
std::optional<std::filesystem::path> oom_counter_file(std::string_view cgroup, std::string_view mountinfo);

/// The counter oom_kill in the text of such a file.
std::optional<std::uint64_t> parse_oom_kills(std::string_view text);

/// An OOM kill in the kernel's log.
struct OomKill {
  pid_t pid = 0;
  bool in_cgroup = false;             ///< its cgroup was full, not the machine
  std::uint64_t anonymous_bytes = 0;  ///< that it held; 0: unknown

  bool operator==(const OomKill&) const = default;
};

/// Reads a line of the kernel's log, from dmesg or /dev/kmsg.
std::optional<OomKill> parse_oom_kill(std::string_view line);

/// What is known about a process that may have run out of memory.
struct OomFinding {
  std::uint64_t kills = 0;       ///< in the job's cgroup since the job began, if the kernel counts them
  std::optional<OomKill> named;  ///< the kernel's line about this process
};

/// The report's line about a worker's memory; may be empty.
///
/// killed   a SIGKILL that ddprun did not send ended the worker
std::string describe(const OomFinding& finding, bool killed);

/// Watches for OOM kills. Needs no privileges: reads the kernel's log only if permitted.
class OomWatch {
 public:
  OomWatch();

  /// What has happened since construction or the last restart(), for this process. Does not block.
  OomFinding look(pid_t pid);

  /// Forgets earlier kills because a new attempt begins.
  void restart();

 private:
  std::uint64_t count_kills() const;

  std::optional<std::filesystem::path> counter_;
  std::uint64_t kills_before_ = 0;
  UniqueFd kernel_log_;
};

}  // namespace ddprun::launcher
