#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

/// A process that dumped core.
struct CoreDump {
  pid_t pid = 0;
  int signal = 0;
  std::string host;
  std::filesystem::path cwd;  ///< where it was started; it may have gone elsewhere since
  std::chrono::system_clock::time_point started_at;
  std::chrono::system_clock::time_point ended_at;
};

/// The pattern for glob(7) that its core file fits, from the kernel's core_pattern(5): what is known of the
/// process is filled in, what only the kernel knew (%e, %t, %i, ...) matches anything.
///
/// pattern    /proc/sys/kernel/core_pattern
/// uses_pid   /proc/sys/kernel/core_uses_pid
std::string core_glob(std::string_view pattern, bool uses_pid, const CoreDump& dump);

/// Whom the kernel hands cores to, in words for the user; nullopt if the pattern names a file.
std::optional<std::string> core_handler(std::string_view pattern, const CoreDump& dump);

/// Where the core of a process is, in words for the user: a path, or who was given it. Empty if none is
/// found: a file counts if it is a regular one, ours, and was written while the process lived.
std::string find_core(const CoreDump& dump);

}  // namespace ddprun::launcher
