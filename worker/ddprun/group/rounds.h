#pragma once

#include <memory>
#include <stdexcept>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// This rank's round is over: another rank was lost and is being replaced.
class RoundOver : public std::runtime_error {
 public:
  RoundOver() : std::runtime_error("another rank was lost") {}
};

/// A worker's side of ddprun --recover=rank. When a rank is lost, ddprun restarts only that one; the others
/// leave the broken collective, reconnect and continue:
///
///   Rounds rounds(from_env());
///   rounds.announce(true);
///   for (;;) {
///     try {
///       auto group = ProcessGroup::connect(rounds.env(), rounds.options({}));
///       train(group);
///       rounds.announce(false);
///       return group.close();
///     } catch (const std::exception&) {  // the group is destroyed
///       if (!rounds.next()) throw;
///     }
///   }
///
/// One per process. Its thread ends a process that does not leave its round in time (a hung device), so that
/// it is replaced too.
class Rounds {
 public:
  explicit Rounds(const WorkerEnv& env);
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Whether ddprun replaces lost ranks. If not, everything else here does nothing.
  bool enabled() const;

  /// Tells ddprun whether this program can continue after losing another rank. If not, or before the first
  /// call, ddprun restarts all ranks.
  void announce(bool can_go_on) const;

  /// This round's environment: MASTER_PORT, the restart count and the round differ in each.
  const WorkerEnv& env() const;

  /// The options, made so that connect() throws RoundOver once a later round has begun.
  ProcessGroup::Options options(ProcessGroup::Options options) const;

  /// Throws RoundOver if a later round has begun, according to the process's Rounds. Call it for every batch.
  static void check();

  /// This rank has left the batch that it was in when the round ended: it may take its time to connect.
  static void leave();

  /// After a failure, with the old group destroyed: moves to the newest round. False if none begins within
  /// half a second, or three on several nodes: the failure is this rank's own, or ddprun ends the job.
  bool next();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// While one exists, this thread leaves forward and backward as soon as a later round has begun, rather than
/// at their next collective: a tensor that it allocates on the CPU throws RoundOver. Weights must not change
/// then.
class LeaveAtOnce {
 public:
  LeaveAtOnce();
  ~LeaveAtOnce();
  /// No longer in this pass of this thread. DistributedDataParallel calls it once every parameter has its
  /// gradient: from here on the lost rank may have completed the step, which this one can complete as well.
  static void end();
  LeaveAtOnce(const LeaveAtOnce&) = delete;
  LeaveAtOnce& operator=(const LeaveAtOnce&) = delete;
};

}  // namespace ddprun::ddp
