#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/events/clock.h"
#include "launcher/events/threads.h"

namespace ddprun::launcher {

/// Merges the lines of many writers into one stream: whole, in order, through a bounded buffer, and without
/// waiting for the reader: what would wait, a thread writes. An address that it owns identifies a writer.
class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  using Writer = const void*;
  using Clock = LoopClock;
  static constexpr std::size_t kFull = std::size_t{256} << 10;
  /// Of ddprun's own messages while there is no room; then the oldest are dropped.
  static constexpr std::size_t kMostOwn = std::size_t{64} << 10;

  /// fd    remains the caller's
  /// name  for messages: "stdout"
  ConsoleSink(boost::asio::io_context& io, int fd, std::string name);

  bool is_terminal() const { return is_terminal_; }
  int fd() const { return fd_; }

  /// Writes lines, each with the prefix before it. If the last has no '\n', the writer's next text continues
  /// it without a prefix; another writer's text ends it first.
  void write(Writer writer, std::string_view prefix, std::string_view lines);

  /// Ends the line that the writer has left open.
  void end_line(Writer writer);

  /// Writes a message of ddprun itself, with its '\n', on a line of its own. Without room it waits here.
  void write_own(std::string text);

  /// On a terminal: shows the text below all lines until the writer writes, or another writer calls this.
  void show_transient(Writer writer, std::string text);

  /// The writer is done: its callback is dropped.
  void forget(Writer writer);

  /// False while too much output is queued.
  bool has_room() const { return buffer_.size() + thread_.waiting() < full_; }
  /// Changes how much that is.
  void set_full(std::size_t full);
  /// Calls back once when there is room again.
  void when_room(Writer writer, std::function<void()> callback);

  /// Waits until all that workers wrote is written. False at the deadline.
  boost::asio::awaitable<bool> drain(std::optional<Clock::time_point> deadline);
  /// Blocks until everything is written, for at most this long.
  void finish(std::chrono::milliseconds patience);

 private:
  class Descriptor;

  void flush_soon();
  void flush(bool at_end = false);
  void end_open_line();
  void add_own(bool at_end);
  void hide_transient();
  void draw_transient();

  boost::asio::io_context& io_;
  int fd_;
  bool is_terminal_;
  bool moves_cursor_;  // the terminal understands escape sequences
  std::size_t full_ = kFull;
  WriterThread thread_;
  std::shared_ptr<Descriptor> target_;
  std::string buffer_;               // of this turn of the loop
  bool flush_due_ = false;           // flush() has been posted
  bool workers_wrote_ = false;       // some of the buffer
  std::uint64_t workers_bytes_ = 0;  // passed to the thread up to the end of the workers' last
  std::deque<std::string> own_;      // ddprun's messages that found no room
  std::size_t own_size_ = 0, own_dropped_ = 0;
  bool line_open_ = false;  // the last line is unfinished
  Writer line_owner_ = nullptr;
  std::string transient_;
  Writer transient_owner_ = nullptr;
  bool transient_shown_ = false;
};

/// ddprun's stdout and stderr, shared by all workers. If both lead to the same place, they are one sink:
/// lines keep their order, and there is one transient line.
class Console {
 public:
  using Clock = LoopClock;

  explicit Console(boost::asio::io_context& io, int out_fd = 1, int err_fd = 2);

  const std::shared_ptr<ConsoleSink>& out() { return out_; }
  const std::shared_ptr<ConsoleSink>& err() { return err_; }

  /// Of both: see ConsoleSink.
  void set_full(std::size_t full) {
    for (const auto& sink : {out_, err_}) sink->set_full(full);
  }

  /// Waits until all that workers wrote is written. False at the deadline.
  boost::asio::awaitable<bool> drain(std::optional<Clock::time_point> deadline = std::nullopt);

  /// Blocks until everything is written, for at most this long: for the end of ddprun.
  void finish(std::chrono::milliseconds patience);

 private:
  std::shared_ptr<ConsoleSink> out_, err_;
};

}  // namespace ddprun::launcher
