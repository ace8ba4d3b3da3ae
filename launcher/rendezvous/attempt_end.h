#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <ddprun/common/exit_status.h>
#include "launcher/events/signals.h"

namespace ddprun::launcher {

struct AllSucceeded {
  bool operator==(const AllSucceeded&) const = default;
};
struct WorkerFailed {
  ExitStatus status;
  std::size_t index = 0;  ///< of the first worker that failed, on its node
  bool operator==(const WorkerFailed&) const = default;
};
/// A worker, or ddprun itself, could not start.
struct StartFailed {
  int exit_code = 0;  ///< LaunchError's
  std::string message = {};
  bool operator==(const StartFailed&) const = default;
};
struct TimedOut {
  bool operator==(const TimedOut&) const = default;
};
/// These workers hang, by index on their node: first the one that has been silent longest, most likely the
/// culprit.
struct Hung {
  std::vector<std::size_t> workers = {};
  bool operator==(const Hung&) const = default;
};
/// The job's other nodes ended the attempt.
struct EndedByPeers {
  std::string reason = {};
  bool operator==(const EndedByPeers&) const = default;
};

/// How an attempt, or the whole job, ended.
using AttemptEnd =
    std::variant<AllSucceeded, WorkerFailed, StartFailed, TimedOut, Hung, SignalReceived, EndedByPeers>;

/// ddprun's exit code for it; 0 if the other nodes ended it, whose coordinator knows the code.
int to_exit_code(const AttemptEnd& end);

/// "reason" of --result-json, which tells a worker's exit code 2, or 124 to 127, from ddprun's own:
/// "succeeded", "failed", "signal", "timeout", "hang", "other-node", or of ddprun's own failures
/// "own-failure", "not-executable", "not-found", "usage".
std::string reason_of(const AttemptEnd& end);

}  // namespace ddprun::launcher
