#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include "launcher/output/attempt_output.h"
#include "tests/support/child.h"

// What tests of the launcher's output need: ends of pipes and terminals, event loops, processes that write.
namespace ddprun::test {
using namespace launcher;

struct Ends {
  UniqueFd ours, theirs;  ///< ours is what the test reads
};

inline Ends make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline Ends make_sockets() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw std::runtime_error("socketpair");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

/// A terminal that passes bytes on as they are, 100 columns wide.
inline Ends make_terminal() {
  int ours, theirs;
  termios modes{};
  ::cfmakeraw(&modes);
  winsize size{};
  size.ws_col = 100;
  size.ws_row = 30;
  if (::openpty(&ours, &theirs, nullptr, &modes, &size) != 0) throw std::runtime_error("openpty");
  return {UniqueFd(ours), UniqueFd(theirs)};
}

/// What can be read now.
inline std::string read_available(const UniqueFd& fd) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) return text;
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

/// Runs the loop until the condition is true. False if the deadline passes.
inline bool run_until(boost::asio::io_context& io, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    io.restart();
    io.run_one_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Runs a coroutine to its end.
template <typename T>
std::optional<T> run(boost::asio::io_context& io, boost::asio::awaitable<T> work) {
  std::optional<T> result;
  boost::asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, T value) {
    if (!error) result = value;
  });
  run_until(io, [&] { return result.has_value(); });
  return result;
}

inline bool run(boost::asio::io_context& io, boost::asio::awaitable<void> work) {
  bool done = false;
  boost::asio::co_spawn(io, std::move(work), [&](std::exception_ptr error) { done = !error; });
  return run_until(io, [&] { return done; });
}

/// A process that runs a function of the test, with these ends as its stdout and stderr.
class Writer {
 public:
  Writer(WorkerOutputs ends, const std::function<void()>& work) {
    std::fflush(nullptr);  // else ThreadSanitizer's _exit writes it a second time
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::signal(SIGPIPE, SIG_DFL);
    if (ends.out) ::dup2(ends.out.get(), STDOUT_FILENO);
    if (ends.err) ::dup2(ends.err.get(), STDERR_FILENO);
    ends = {};
    work();
    ::_exit(0);
  }
  ~Writer() {
    if (ended()) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool ended() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = ExitStatus::from_wait_status(status);
    return status_.has_value();
  }
  const std::optional<ExitStatus>& status() const { return status_; }

 private:
  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
};

inline void put(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) ::_exit(99);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// Reads a descriptor to its end on its own thread.
class Collector {
 public:
  using Take = std::function<void(std::string_view)>;
  Collector(int fd, Take take)
      : thread_([fd, take = std::move(take)] {
          char buffer[1 << 16];
          ssize_t n;
          while ((n = ::read(fd, buffer, sizeof buffer)) > 0)
            take(std::string_view(buffer, static_cast<std::size_t>(n)));
        }) {}
  ~Collector() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

/// ddprun's own messages while this lives. Not in a file: some tests let no file be written.
class CapturedLog {
 public:
  CapturedLog() : pipe_(make_pipe()), before_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    configure_logging("ddprun");
    ::dup2(pipe_.theirs.get(), STDERR_FILENO);
  }
  ~CapturedLog() { ::dup2(before_.get(), STDERR_FILENO); }
  const std::string& text() { return text_ += read_available(pipe_.ours); }

 private:
  Ends pipe_;
  UniqueFd before_;
  std::string text_;
};

}  // namespace ddprun::test
