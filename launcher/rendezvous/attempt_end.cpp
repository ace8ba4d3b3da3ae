#include "launcher/rendezvous/attempt_end.h"

#include <array>

#include "launcher/events/launch_error.h"

namespace ddprun::launcher {

int to_exit_code(const AttemptEnd& end) {
  if (const auto* failed = std::get_if<WorkerFailed>(&end)) return to_exit_code(failed->status);
  if (const auto* failed = std::get_if<StartFailed>(&end)) return failed->exit_code;
  if (const auto* received = std::get_if<SignalReceived>(&end)) return exit_code_of_signal(received->signal);
  return std::holds_alternative<TimedOut>(end) || std::holds_alternative<Hung>(end) ? LaunchError::kTimeout
                                                                                    : 0;
}

std::string reason_of(const AttemptEnd& end) {
  if (const auto* failed = std::get_if<StartFailed>(&end)) {
    if (failed->exit_code == LaunchError::kUsage) return "usage";
    if (failed->exit_code == LaunchError::kNotExecutable) return "not-executable";
    return failed->exit_code == LaunchError::kNotFound ? "not-found" : "own-failure";
  }
  // In the order of AttemptEnd.
  constexpr std::array kReasons{"succeeded", "failed", "", "timeout", "hang", "signal", "other-node"};
  return kReasons.at(end.index());
}

}  // namespace ddprun::launcher
