#include "launcher/job/run_loop.h"

#include <boost/asio/co_spawn.hpp>
#include <exception>

namespace ddprun::launcher {

RunResult run_loop(boost::asio::io_context& io, boost::asio::awaitable<RunResult> job) {
  RunResult result;
  std::exception_ptr thrown;
  boost::asio::co_spawn(io, std::move(job), [&](std::exception_ptr error, RunResult value) {
    thrown = error;
    result = value;
    io.stop();
  });
  io.run();
  if (thrown) std::rethrow_exception(thrown);
  return result;
}

}  // namespace ddprun::launcher
