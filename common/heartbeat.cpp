#include <ddprun/common/heartbeat.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ddprun {
namespace {

bool is_pipe_to_write_to(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return false;
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) == O_WRONLY;
}

}  // namespace

Heartbeat::Heartbeat(std::optional<int> fd) {
  if (!fd || !is_pipe_to_write_to(*fd)) return;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(*fd, F_SETFL, O_WRONLY | O_NONBLOCK);
  fd_ = *fd;
}

void Heartbeat::beat() const {
  if (fd_ >= 0) [[maybe_unused]]
    const ssize_t ignored = ::write(fd_, ".", 1);
}

}  // namespace ddprun
