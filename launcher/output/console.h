#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "launcher/output/console_sink.h"

namespace ddprun::launcher {

/// ddprun's stdout and stderr, shared by all workers. If both lead to the same place they are one sink, so
/// that the lines keep their order and there is one transient line.
///
/// ddprun's own messages go to stderr past this: call make_way() before one.
class Console {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Console(boost::asio::io_context& io, int out_fd = 1, int err_fd = 2);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const std::shared_ptr<ConsoleSink>& out() { return out_; }
  const std::shared_ptr<ConsoleSink>& err() { return err_; }
  /// The descriptors, for a terminal's size.
  int out_fd() const { return out_fd_; }
  int err_fd() const { return err_fd_; }

  /// Before ddprun writes to stdout or stderr itself: what waits is written as far as possible, and the
  /// transient line is taken away, to be drawn again below.
  void make_way();

  /// Until everything is written, or the deadline. False at the deadline.
  boost::asio::awaitable<bool> drain(std::optional<Clock::time_point> deadline = std::nullopt);

 private:
  int out_fd_;
  int err_fd_;
  std::shared_ptr<ConsoleSink> out_;
  std::shared_ptr<ConsoleSink> err_;
  boost::asio::steady_timer wake_up_;
};

}  // namespace ddprun::launcher
