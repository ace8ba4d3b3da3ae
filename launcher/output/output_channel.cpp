#include "launcher/output/output_channel.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace ddprun::launcher {
namespace {

void never_wait(const UniqueFd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "fcntl");
}

/// What is written to it is not echoed, and a newline stays one byte.
bool make_raw(int terminal) {
  termios modes{};
  if (::tcgetattr(terminal, &modes) != 0) return false;
  ::cfmakeraw(&modes);
  return ::tcsetattr(terminal, TCSANOW, &modes) == 0;
}

}  // namespace

OutputChannel open_output_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  OutputChannel channel{UniqueFd(ends[0]), UniqueFd(ends[1])};
  never_wait(channel.reading);
  return channel;
}

OutputChannel open_output_terminal(int like) {
  OutputChannel channel;
  channel.reading.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.reading || ::unlockpt(channel.reading.get()) != 0) return open_output_pipe();
  // Not by its path, which may be another's in our view of the file system.
  channel.writing.reset(::ioctl(channel.reading.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.writing || !make_raw(channel.writing.get())) return open_output_pipe();
  copy_window_size(like, channel.reading.get());
  never_wait(channel.reading);
  return channel;
}

void copy_window_size(int from, int to) {
  winsize size{};
  if (::ioctl(from, TIOCGWINSZ, &size) == 0) ::ioctl(to, TIOCSWINSZ, &size);
}

}  // namespace ddprun::launcher
