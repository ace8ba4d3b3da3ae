#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

/// How a process ended: it exited with a code, or a signal killed it.
struct ExitStatus {
  enum class Kind { kExited, kKilled };

  Kind kind = Kind::kExited;
  int code = 0;              ///< exit code 0..255 if exited
  int signal = 0;            ///< signal number if killed
  bool core_dumped = false;  ///< only if killed

  static ExitStatus exited(int code) { return {Kind::kExited, code, 0, false}; }
  static ExitStatus killed(int signal, bool core_dumped = false) {
    return {Kind::kKilled, 0, signal, core_dumped};
  }
  /// From the status word of wait(2).
  static ExitStatus from_wait_status(int wait_status);

  bool success() const { return kind == Kind::kExited && code == 0; }
  bool operator==(const ExitStatus&) const = default;
};

/// "exit code 7", "signal 9 (SIGKILL)", "signal 11 (SIGSEGV), core dumped".
std::string describe(const ExitStatus& status);

/// The code that a shell shows for a process killed by a signal.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

/// The code that a shell shows: the exit code itself, or exit_code_of_signal().
int to_exit_code(const ExitStatus& status);

/// "SIGTERM" for 15, "SIGRTMIN+1" for a real-time signal, "signal 99" for an unnamed one.
std::string signal_name(int signal);

/// 9 for "SIGKILL", "KILL" or "sigkill"; nullopt for an unknown name.
std::optional<int> signal_by_name(std::string_view name);

}  // namespace ddprun
