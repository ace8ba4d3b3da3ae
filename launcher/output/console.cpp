#include "launcher/output/console.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace ddprun::launcher {
namespace asio = boost::asio;

Console::Console(asio::io_context& io, int out_fd, int err_fd)
    : out_fd_(out_fd), err_fd_(err_fd), wake_up_(io) {
  out_ = std::make_shared<ConsoleSink>(io, out_fd, "stdout");
  err_ = same_output(out_fd, err_fd) ? out_ : std::make_shared<ConsoleSink>(io, err_fd, "stderr");
  for (const auto& sink : {out_, err_}) sink->on_flushed([this] { wake_up_.cancel(); });
}

Console::~Console() {
  for (const auto& sink : {out_, err_}) sink->on_flushed({});
}

void Console::make_way() {
  out_->make_way();
  if (err_ != out_) err_->make_way();
}

asio::awaitable<bool> Console::drain(std::optional<Clock::time_point> deadline) {
  out_->flush();
  err_->flush();
  while (!out_->flushed() || !err_->flushed()) {
    wake_up_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await wake_up_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return out_->flushed() && err_->flushed();
  }
  co_return true;
}

}  // namespace ddprun::launcher
