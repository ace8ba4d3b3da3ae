#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "launcher/rendezvous/known_signs.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {

using HangClock = std::chrono::steady_clock;

/// A worker's signs of life.
struct SignsOfLife {
  bool running = true;
  std::optional<HangClock::time_point> last_output;  ///< nullopt: none yet
  std::optional<HangClock::time_point> last_beat;    ///< nullopt: it never sent a heartbeat
};

/// When to look again: no worker can count as hung earlier. max() if no worker is running, or all depends on
/// news from the other nodes.
struct LookAgain {
  HangClock::time_point at;
};

/// Which workers hang?
///
/// A worker that ever sent a heartbeat hangs when its latest beat or output is as old as the timeout. Workers
/// that never sent one are judged together over the job, since in many programs only rank 0 prints: all
/// running ones hang when no worker on any node has shown a sign of life for the timeout. A worker that has
/// ended cannot hang, but its signs count for the others.
///
/// since  when the workers started, or ddprun continued after a stop; counts as a sign of life
/// job    the signs on all nodes: what is not known yet makes nobody hang. On one node alone, known until now
std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, HangClock::time_point since,
                                         std::chrono::milliseconds timeout, HangClock::time_point now,
                                         const KnownSigns& job);

/// The last sign of life of any of these workers.
HangClock::time_point latest_sign(const std::vector<SignsOfLife>& workers, HangClock::time_point since);

}  // namespace ddprun::launcher
