// How a worker ended: its exit status, and the error file that it may have written.
#pragma once

#include <cstdint>
#include <filesystem>
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

/// A worker's own report of its failure, for its launcher.
struct WorkerError {
  std::string message;         ///< "Type: text", or only the text
  std::string call_stack;      ///< Python's py_callstack; may be empty
  std::int64_t timestamp = 0;  ///< seconds since the epoch; 0 if the file gives none
  /// The worker's exit code, or minus its signal; added by a launcher that forwards the error.
  std::optional<int> error_code = std::nullopt;
};

/// Writes torch elastic's format, atomically; without errorCode if there is none:
///   {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": "SECONDS"}, "errorCode":
///   N}}
/// Leaves anything but a regular file, such as /dev/null, alone. throws IoError
void write_error_file(const std::filesystem::path& path, const WorkerError& error);

struct ErrorFileContent {
  std::optional<WorkerError> error;  ///< none: no file, or a problem
  std::string problem;               ///< one line on why the file cannot be used
};

/// Reads any worker's error file and trusts nothing: opens only a regular file owned by this user (root reads
/// anyone's), reads at most 64 KiB, and does not throw for a missing or broken file. Understands torch
/// elastic's format and the older {"message": TEXT, "timestamp": SECONDS}.
ErrorFileContent read_error_file(const std::filesystem::path& path) noexcept;

}  // namespace ddprun
