#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "launcher/job/supervisor.h"

namespace ddprun::launcher {

/// Runs the loop until the coroutine has returned or thrown. In a file of its own because of what Asio takes
/// to compile.
RunResult run_loop(boost::asio::io_context& io, boost::asio::awaitable<RunResult> job);

}  // namespace ddprun::launcher
