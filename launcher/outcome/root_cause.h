#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <ddprun/common/error_file.h>

namespace ddprun::launcher {

/// An error file that was there when the first exit of a failed worker was noticed.
struct ErrorSeen {
  std::int64_t reported = 0;    ///< by the worker, in seconds of this host's clock; 0: unknown
  std::int64_t written_ns = 0;  ///< by the clock of the file system, which may be another one
  ErrorFileContent content = {};
};

/// Reads error files: aside if they may be on a disk that stalls, and waits for it for that long.
///
/// error_files  "": none
/// aside        false: at once
boost::asio::awaitable<std::vector<ErrorFileContent>> read_error_files(
    std::vector<std::filesystem::path> error_files, bool aside, std::chrono::milliseconds patience);

/// nullopt: the worker has written none. Waits half a second for a file system that does not answer, then
/// sees no file at all.
boost::asio::awaitable<std::vector<std::optional<ErrorSeen>>> errors_seen(
    std::vector<std::filesystem::path> error_files, bool aside);

/// The worker that failed first. The first to exit may have failed because of another one, which takes longer
/// to exit but had written its error file before. Of several files the oldest counts; their times are
/// compared only with each other.
///
/// first  the first to exit
/// seen   by worker; nullopt also for one that has succeeded
std::size_t root_cause(std::size_t first, const std::vector<std::optional<ErrorSeen>>& seen);

/// Whether a worker that lives may be about to exit with this error. False: it has long recovered.
///
/// now  in seconds of this host's clock
bool may_exit_soon(const ErrorSeen& error, std::int64_t now);

}  // namespace ddprun::launcher
