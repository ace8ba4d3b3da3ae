#include <ddprun/common/heartbeat.h>

#include <unistd.h>

#include <ddprun/common/files.h>

namespace ddprun {

Heartbeat::Heartbeat(std::optional<int> fd) : fd_(pipe_to_write_to(fd)) {}

void Heartbeat::beat() const {
  if (fd_ >= 0) [[maybe_unused]]
    const ssize_t ignored = ::write(fd_, ".", 1);
}

}  // namespace ddprun
