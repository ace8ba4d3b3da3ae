#pragma once

#include <memory>
#include <stdexcept>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// The round of this rank is over: another rank was lost and is replaced.
class RoundOver : public std::runtime_error {
 public:
  RoundOver() : std::runtime_error("another rank was lost") {}
};

/// A worker's side of ddprun --recover=rank. When a rank is lost, ddprun starts it alone again; the others
/// leave the broken collective, connect again and go on:
///
///   Rounds rounds(from_env());
///   rounds.announce(true);
///   for (;;) {
///     const auto group = ProcessGroup::connect(rounds.env(), rounds.options({}));
///     try {
///       return train(group);
///     } catch (const std::exception&) {
///       if (!rounds.next()) throw;
///     }
///   }
///
/// One for a process. Its thread ends a process that has not left its round in time (a hung device), so that
/// it is replaced too.
class Rounds {
 public:
  explicit Rounds(const WorkerEnv& env);
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Whether ddprun replaces lost ranks. Else all else here does nothing.
  bool enabled() const;

  /// Tells ddprun whether this program can go on when another rank is lost. Else, and before the first call,
  /// ddprun starts all ranks again.
  void announce(bool can_go_on) const;

  /// This round's: MASTER_PORT, the restart count and round change from one to the next.
  const WorkerEnv& env() const;

  /// The options, and connect() throws RoundOver once a later round has begun.
  ProcessGroup::Options options(ProcessGroup::Options options) const;

  /// Throws RoundOver if it has. Of the process's Rounds; for every batch.
  static void check();

  /// After a failure, with the old group gone: goes to the newest round. False if none begins within half a
  /// second, or three on several nodes: the failure is this rank's own, or ddprun ends the job.
  bool next();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun::ddp
