#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ddprun {

/// What a worker tells its launcher about its own failure.
struct WorkerError {
  std::string message;         ///< "Type: text", or the text alone
  std::string call_stack;      ///< Python's py_callstack; may be empty
  std::int64_t timestamp = 0;  ///< seconds since the epoch; 0 if the file gives none
  /// How the worker ended, added by a launcher that passes the error on: an exit code, or minus a signal.
  std::optional<int> error_code = std::nullopt;
};

/// Writes the file in torch elastic's format, atomically:
///   {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": "SECONDS"}, "errorCode":
///   N}}
/// where errorCode is left out if there is none.
/// throws IoError
void write_error_file(const std::filesystem::path& path, const WorkerError& error);

/// What was found where a worker was asked to put its error.
struct ErrorFileContent {
  std::optional<WorkerError> error;  ///< set if the file is there and understood
  std::string problem;  ///< one line if something is there that is not a usable error file; else empty
};

/// Reads an error file of any worker, trusting nothing: no link or FIFO is followed, the file must be this
/// user's own (root reads anybody's), no more than 64 KiB is read, and neither a missing nor a broken file
/// throws. Understands torch elastic's format and the older
/// {"message": TEXT, "timestamp": SECONDS}.
ErrorFileContent read_error_file(const std::filesystem::path& path) noexcept;

}  // namespace ddprun
