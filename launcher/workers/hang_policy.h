#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "launcher/rendezvous/attempt_end.h"

namespace ddprun::launcher {

using HangClock = std::chrono::steady_clock;

/// What a worker has shown of itself.
struct SignsOfLife {
  bool running = true;
  std::optional<HangClock::time_point> last_output;  ///< nullopt: none yet
  std::optional<HangClock::time_point> last_beat;    ///< nullopt: it sends no heartbeats
};

/// When to look again: nobody can be held for hung before. max() if no worker is running.
struct LookAgain {
  HangClock::time_point at;
};

/// Which workers hang?
///
/// A worker that ever sent a heartbeat is judged alone: it hangs when its own latest sign of life, beat or
/// output, is as old as the timeout. The workers that never sent one are judged together, for in many
/// programs only rank 0 prints: they hang, all that are running, when no worker at all has shown a sign of
/// life for the timeout. A worker that has ended cannot hang; what it showed while it ran counts for the
/// others.
///
/// since  when the workers were started, or ddprun was continued after a stop: counts as a sign of life
std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, HangClock::time_point since,
                                         std::chrono::milliseconds timeout, HangClock::time_point now);

}  // namespace ddprun::launcher
