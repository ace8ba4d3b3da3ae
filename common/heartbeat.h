#pragma once

#include <optional>

namespace ddprun {

/// The worker's side of ddprun's --hang-timeout: a sign of life whenever the training gets on.
///
///   Heartbeat heartbeat(from_env().heartbeat_fd);   once, early
///   heartbeat.beat();                               every step
///
/// A worker that has once sent a beat is held for hung when its beats (and its output) stop, whatever the
/// others do. The descriptor remains the process's: copies are alike, and any thread may beat.
class Heartbeat {
 public:
  /// Beats that go nowhere.
  Heartbeat() = default;
  /// fd  DDPRUN_HEARTBEAT_FD. What is no pipe to write to is not ddprun's: the variable was left over from a
  ///     process further up, and the beats go nowhere.
  explicit Heartbeat(std::optional<int> fd);

  /// Never waits and never fails: a full pipe holds beats enough.
  void beat() const;

  /// True if somebody may listen.
  bool connected() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace ddprun
