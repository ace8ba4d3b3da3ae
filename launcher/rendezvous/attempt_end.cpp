#include "launcher/rendezvous/attempt_end.h"

#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

struct ExitCodeOf {
  int operator()(const AllSucceeded&) const { return 0; }
  int operator()(const WorkerFailed& failed) const { return to_exit_code(failed.status); }
  int operator()(const StartFailed& failed) const { return failed.exit_code; }
  int operator()(const TimedOut&) const { return LaunchError::kTimeout; }
  int operator()(const Hung&) const { return LaunchError::kTimeout; }
  int operator()(const SignalReceived& received) const { return exit_code_of_signal(received.signal); }
  int operator()(const EndedByPeers&) const { return 0; }
};

struct ReasonOf {
  const char* operator()(const AllSucceeded&) const { return "succeeded"; }
  const char* operator()(const WorkerFailed&) const { return "failed"; }
  const char* operator()(const StartFailed& failed) const {
    switch (failed.exit_code) {
      case LaunchError::kUsage:
        return "usage";
      case LaunchError::kNotExecutable:
        return "not-executable";
      case LaunchError::kNotFound:
        return "not-found";
      default:
        return "own-failure";
    }
  }
  const char* operator()(const TimedOut&) const { return "timeout"; }
  const char* operator()(const Hung&) const { return "hang"; }
  const char* operator()(const SignalReceived&) const { return "signal"; }
  const char* operator()(const EndedByPeers&) const { return "other-node"; }
};

}  // namespace

int to_exit_code(const AttemptEnd& end) { return std::visit(ExitCodeOf{}, end); }

std::string reason_of(const AttemptEnd& end) { return std::visit(ReasonOf{}, end); }

}  // namespace ddprun::launcher
