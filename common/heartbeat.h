#pragma once

#include <unistd.h>

#include <optional>

namespace ddprun {

int pipe_to_write_to(std::optional<int> fd);  // in files.h

/// The worker's side of ddprun's --hang-timeout: a beat whenever the training makes progress.
///
///   Heartbeat heartbeat(from_env().heartbeat_fd);   once, early
///   heartbeat.beat();                               every step
///
/// Once a worker has sent a beat, it counts as hung when its beats and its output stop, whatever the other
/// workers do. Does not own the descriptor: copies are equal, and any thread may beat.
class Heartbeat {
 public:
  Heartbeat() = default;  ///< beats go nowhere
  /// fd  DDPRUN_HEARTBEAT_FD. Beats go nowhere unless it is the writing end of a pipe: the variable may be
  ///     left over from an outer process.
  explicit Heartbeat(std::optional<int> fd) : fd_(pipe_to_write_to(fd)) {}

  /// Never waits and never fails: if the pipe is full, a beat is already queued.
  void beat() const {
    if (fd_ >= 0) [[maybe_unused]]
      const ssize_t ignored = ::write(fd_, ".", 1);
  }

  bool connected() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace ddprun
