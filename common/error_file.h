#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ddprun {

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
/// throws IoError
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
