#pragma once

#include <sys/types.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// Merges the lines of many writers into one stream: whole, in order, through a bounded buffer, and without
/// waiting for the reader. An address that it owns identifies a writer.
///
/// The descriptor is shared with other programs, so O_NONBLOCK must not be set on it. Pipes and terminals are
/// reopened; where that fails (sockets, another user's terminal), little is written at a time, and only when
/// there is room. Files never block.
class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  using Writer = const void*;
  static constexpr std::size_t kFull = std::size_t{256} << 10;

  /// fd    remains the caller's, and must outlive this
  /// name  for messages: "stdout"
  ConsoleSink(boost::asio::io_context& io, int fd, std::string name);

  bool is_terminal() const { return is_terminal_; }
  int fd() const { return fd_; }

  /// Writes a line. Without '\n', the writer's next text continues it without a prefix; another writer's text
  /// ends it first.
  void write(Writer writer, std::string_view prefix, std::string_view line);

  /// Ends the line that the writer has left open.
  void end_line(Writer writer);

  /// On a terminal: shows the text below all lines until the writer writes, or another writer calls this.
  void show_transient(Writer writer, std::string text);

  /// The writer is done: its callback is dropped.
  void forget(Writer writer);

  /// False while too much output is queued.
  bool has_room() const { return waiting_bytes() < kFull; }
  /// Calls back once when there is room again.
  void when_room(Writer writer, std::function<void()> callback);

  /// Writes what can be written now.
  void flush();
  bool flushed() const { return waiting_bytes() == 0 && !flush_due_; }
  /// Called whenever everything has been written.
  void on_flushed(std::function<void()> callback) { on_flushed_ = std::move(callback); }

  /// Clears the transient line and writes what can be written, before someone writes to the descriptor
  /// directly.
  void make_way();

 private:
  enum class Kind { kFile, kReopened, kShared };
  struct Waiter {
    Writer writer;
    std::function<void()> callback;
  };

  void watch_shared();
  ssize_t write_some(std::string_view bytes);
  std::size_t waiting_bytes() const { return buffer_.size() - written_; }
  void flush_soon();
  void write_buffer();
  void wait_until_writable();
  void handle_error(int error);
  void hide_transient();
  void draw_transient();

  boost::asio::io_context& io_;
  int fd_;
  boost::asio::posix::stream_descriptor waiter_;  // waits until fd_ is writable
  Kind kind_ = Kind::kFile;
  bool is_terminal_;
  std::string name_;
  std::string buffer_;
  std::size_t written_ = 0;  // of buffer_
  bool flush_due_ = false;   // flush() has been posted
  bool blocked_ = false;     // waiting until fd_ is writable
  bool gone_ = false;        // the reader is gone
  bool warned_ = false;
  bool line_open_ = false;  // the last line is unfinished
  Writer line_owner_ = nullptr;
  std::string transient_;
  Writer transient_owner_ = nullptr;
  bool transient_shown_ = false;
  std::vector<Waiter> waiters_;
  std::function<void()> on_flushed_;
};

/// ddprun's stdout and stderr, shared by all workers. If both lead to the same place, they are one sink:
/// lines keep their order, and there is one transient line.
///
/// ddprun's own messages bypass this: call make_way() before one.
class Console {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Console(boost::asio::io_context& io, int out_fd = 1, int err_fd = 2);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const std::shared_ptr<ConsoleSink>& out() { return out_; }
  const std::shared_ptr<ConsoleSink>& err() { return err_; }

  /// Call it before writing to stdout or stderr directly: writes queued output as far as possible, and clears
  /// the transient line, which is redrawn below.
  void make_way();

  /// Waits until everything is written. False at the deadline.
  boost::asio::awaitable<bool> drain(std::optional<Clock::time_point> deadline = std::nullopt);

 private:
  std::shared_ptr<ConsoleSink> out_, err_;
  boost::asio::steady_timer wake_up_;
};

}  // namespace ddprun::launcher
