#pragma once

#include <boost/asio/awaitable.hpp>

#include "launcher/job/attempt.h"

namespace ddprun::launcher {

/// If a worker failed: turns the outcome from the first exit into the worker that failed first, and its exit.
/// A worker that had written its error file before is about to exit; it has two seconds, for its exit code is
/// the job's. If it takes longer, the code is 1.
boost::asio::awaitable<void> find_first_failure(WorkerGroup& group, Attempt& attempt);

/// After the workers were stopped: the outcome of one that took longer, if it chose its exit code itself.
void take_late_exit(const WorkerGroup& group, Attempt& attempt);

}  // namespace ddprun::launcher
