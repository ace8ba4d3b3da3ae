#pragma once

#include <boost/asio/awaitable.hpp>

#include "launcher/job/attempt.h"

namespace ddprun::launcher {

/// If a worker failed: turns the outcome from the first exit into the worker that failed first, and its exit.
/// A crash comes before an exit and before an error. A worker that had written its error file before is about
/// to exit, within two seconds, for its exit code is the job's; or it may have recovered from the error, and
/// is only one of those that reported before.
boost::asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt);

/// Reads what workers have reported: those that have failed, or all for --result-json.
boost::asio::awaitable<void> read_errors(const Job& job, const std::vector<Worker>& workers,
                                         Attempt& attempt);

}  // namespace ddprun::launcher
