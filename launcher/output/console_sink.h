#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/output/nonblocking_output.h"

namespace ddprun::launcher {

/// Where the lines of many writers become one stream: whole, in the order in which they are handed in,
/// through a bounded buffer, and without ever waiting for who reads them.
///
/// A writer is told apart by an address that it owns.
class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  using Writer = const void*;
  static constexpr std::size_t kFull = std::size_t{256} << 10;

  /// name  for messages: "stdout"
  ConsoleSink(boost::asio::io_context& io, int fd, std::string name);

  bool is_terminal() const { return output_.is_terminal(); }

  /// One line. If it has no '\n', the writer's next text continues it, without a prefix. Another writer's
  /// text ends it before.
  void write(Writer writer, std::string_view prefix, std::string_view line);

  /// Ends the line that the writer has left open.
  void end_line(Writer writer);

  /// On a terminal: shows the text below all lines until the writer writes, or another one shows one.
  void show_transient(Writer writer, std::string text);

  /// The writer writes no more, and is not called any more.
  void forget(Writer writer);

  /// False while too much waits to be written.
  bool has_room() const { return waiting_bytes() < kFull; }
  /// Calls back once when there is room again.
  void when_room(Writer writer, std::function<void()> callback);

  /// Writes what can be written now.
  void flush();
  bool flushed() const { return waiting_bytes() == 0 && !flush_due_; }
  /// Called whenever everything has been written.
  void on_flushed(std::function<void()> callback) { on_flushed_ = std::move(callback); }

  /// Takes the transient line away and writes what can be written, for who writes to the descriptor himself.
  void make_way();

 private:
  struct Waiter {
    Writer writer;
    std::function<void()> callback;
  };

  std::size_t waiting_bytes() const { return buffer_.size() - written_; }
  void flush_soon();
  void write_buffer();
  void wait_until_writable();
  void handle_error(int error);
  void hide_transient();
  void draw_transient();
  void call_back();

  boost::asio::io_context& io_;
  NonblockingOutput output_;
  std::string name_;
  std::string buffer_;
  std::size_t written_ = 0;  // of buffer_
  bool flush_due_ = false;   // posted
  bool blocked_ = false;     // waits until output_ can be written
  bool gone_ = false;        // nobody reads any more
  bool warned_ = false;
  bool line_open_ = false;  // the last line has no end yet
  Writer line_owner_ = nullptr;
  std::string transient_;
  Writer transient_owner_ = nullptr;
  bool transient_shown_ = false;
  std::vector<Waiter> waiters_;
  std::function<void()> on_flushed_;
};

}  // namespace ddprun::launcher
