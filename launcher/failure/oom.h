#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// The file that counts the processes which the kernel killed for want of memory in the cgroup of a process:
/// memory.events (v2) or memory.oom_control (v1).
///
/// cgroup      the text of /proc/PID/cgroup
/// mountinfo   the text of /proc/PID/mountinfo
/// returns     nullopt if that cgroup counts no memory, or lies outside of what is mounted
std::optional<std::filesystem::path> oom_counter_file(std::string_view cgroup, std::string_view mountinfo);

/// The counter oom_kill in the text of such a file.
std::optional<std::uint64_t> parse_oom_kills(std::string_view text);

/// A process that the kernel killed for want of memory, by its own words.
struct OomKill {
  pid_t pid = 0;
  std::string name;
  bool in_cgroup = false;             ///< its cgroup was full, and not the machine
  std::uint64_t anonymous_bytes = 0;  ///< what it held; 0: not said

  bool operator==(const OomKill&) const = default;
};

/// Reads a line of the kernel's log, as dmesg shows it or as /dev/kmsg hands it out.
std::optional<OomKill> parse_oom_kill(std::string_view line);

/// What is known of a job's memory.
struct OomFinding {
  std::uint64_t kills = 0;  ///< in the job's cgroup since the job began, as far as the kernel counts them
  std::optional<OomKill> named;  ///< the kernel's line on the process asked for
};

/// What the report says about a worker's memory; empty if there is nothing to say.
///
/// killed   SIGKILL ended the worker, and ddprun did not send it
std::string describe(const OomFinding& finding, bool killed);

/// Sees what the kernel kills for want of memory while it lives. Needs no privileges: the kernel's log is
/// used where this process may read it.
class OomWatch {
 public:
  OomWatch();

  /// What has happened since the watch, or the last restart(), began. Does not block.
  OomFinding look(pid_t pid);

  /// A new attempt begins: what was killed up to now is forgotten.
  void restart();

 private:
  std::optional<std::uint64_t> read_counter() const;

  std::optional<std::filesystem::path> counter_;
  std::uint64_t kills_before_ = 0;
  UniqueFd kernel_log_;
};

}  // namespace ddprun::launcher
