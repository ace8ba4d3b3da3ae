#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string_view>

namespace ddprun::launcher {

/// A descriptor that ddprun has in common with other programs, such as its stdout: written without waiting,
/// and without setting O_NONBLOCK, which the others would find set too.
///
/// Pipes and terminals are opened a second time. Where that is not possible (sockets, the terminal of another
/// user) little is written at a time, and only when there is room. Files never wait.
class NonblockingOutput {
 public:
  /// The descriptor remains the caller's, and must live on.
  NonblockingOutput(boost::asio::io_context& io, int fd);

  bool is_terminal() const { return is_terminal_; }

  /// How many bytes were written: 0 if none can be without waiting, -1 with errno if writing fails.
  ssize_t write(std::string_view bytes);

  /// Calls on_ready once when more may be written, or when writing fails.
  void async_wait(std::function<void()> on_ready);

 private:
  enum class Kind { kFile, kReopened, kGuest };

  void open_again();
  void watch_from_outside();

  boost::asio::posix::stream_descriptor waiter_;
  int fd_;
  Kind kind_ = Kind::kFile;
  bool is_terminal_ = false;
};

/// True if both descriptors lead to the same file, pipe or terminal.
bool same_output(int fd, int other);

}  // namespace ddprun::launcher
