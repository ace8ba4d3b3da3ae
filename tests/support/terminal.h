#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <thread>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::test {

/// A terminal; the test has its other end.
class Terminal {
 public:
  Terminal() : ours_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (!ours_ || ::grantpt(ours_.get()) != 0 || ::unlockpt(ours_.get()) != 0)
      skip("no pseudo-terminals here");
    name_ = ::ptsname(ours_.get());
  }
  /// In the child: makes this its controlling terminal and standard input.
  void become_controlling() const {
    ::setsid();
    const int fd = ::open(name_.c_str(), O_RDWR);
    ::ioctl(fd, TIOCSCTTY, 0);
    termios modes{};
    ::tcgetattr(fd, &modes);
    modes.c_lflag |= TOSTOP;  // stops background groups that write
    ::tcsetattr(fd, TCSANOW, &modes);
    ::dup2(fd, STDIN_FILENO);
  }
  /// In the child: makes this its standard error.
  void become_stderr() const {
    const int fd = ::open(name_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const winsize size{.ws_row = 25, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(fd, TIOCSWINSZ, &size);
    ::dup2(fd, STDERR_FILENO);
  }
  void type(const std::string& keys) const { CHECK(::write(ours_.get(), keys.data(), keys.size()) > 0); }

 private:
  friend class Screen;
  UniqueFd ours_;
  std::string name_;
};

/// Reads what programs write to a terminal from now on, so that they never wait for a reader.
class Screen {
 public:
  explicit Screen(const Terminal& terminal)
      : held_(::open(terminal.name_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC)),
        reader_([this, fd = terminal.ours_.get()] {
          // Until nobody has the terminal open any more, and everything is read.
          char bytes[4096];
          for (ssize_t size = 0; (size = ::read(fd, bytes, sizeof bytes)) > 0;)
            text_.append(bytes, static_cast<std::size_t>(size));
        }) {}
  ~Screen() {
    if (reader_.joinable()) text();
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// All output. Call it after the programs have ended.
  const std::string& text() {
    held_.reset();
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  UniqueFd held_;  // for the time when nobody else has it open
  std::string text_;
  std::thread reader_;
};

}  // namespace ddprun::test
