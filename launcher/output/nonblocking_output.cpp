#include "launcher/output/nonblocking_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <system_error>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

/// What epoll cannot wait for: files, and devices such as /dev/null.
bool never_waits(const struct stat& info, bool is_terminal) {
  return S_ISREG(info.st_mode) || S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !is_terminal);
}

}  // namespace

NonblockingOutput::NonblockingOutput(asio::io_context& io, int fd)
    : waiter_(io), fd_(fd), is_terminal_(::isatty(fd) == 1) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || never_waits(info, is_terminal_)) return;
  open_again();
  if (kind_ != Kind::kReopened) watch_from_outside();
}

void NonblockingOutput::open_again() {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  const int fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return;
  fd_ = fd;
  waiter_.assign(fd);
  kind_ = Kind::kReopened;
}

// Asio sets O_NONBLOCK on what it waits for. So it waits for an epoll of ours, which waits for the
// descriptor.
void NonblockingOutput::watch_from_outside() {
  const int watch = ::epoll_create1(EPOLL_CLOEXEC);
  if (watch < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  waiter_.assign(watch);
  epoll_event event{};
  event.events = EPOLLOUT;
  if (::epoll_ctl(watch, EPOLL_CTL_ADD, fd_, &event) == 0) kind_ = Kind::kGuest;
}

ssize_t NonblockingOutput::write(std::string_view bytes) {
  if (kind_ == Kind::kGuest) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return 0;
    bytes = bytes.substr(0, PIPE_BUF);  // what is writable takes as much at once
  }
  ssize_t n;
  do n = ::write(fd_, bytes.data(), bytes.size());
  while (n < 0 && errno == EINTR);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : n;
}

void NonblockingOutput::async_wait(std::function<void()> on_ready) {
  const auto type = kind_ == Kind::kGuest ? waiter_.wait_read : waiter_.wait_write;
  waiter_.async_wait(type, [on_ready = std::move(on_ready)](const boost::system::error_code& error) {
    if (!error) on_ready();
  });
}

bool same_output(int fd, int other) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace ddprun::launcher
