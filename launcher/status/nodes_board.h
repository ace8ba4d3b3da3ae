#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/events/clock.h"
#include "launcher/status/stragglers.h"

namespace ddprun::launcher {

/// What the other nodes' ddpruns report about their ranks, in the coordinator's ddprun. Trusts nothing.
class NodesBoard {
 public:
  using Clock = LoopClock;

  /// text  a rank's view (docs/ddpctl.md) as JSON; ignores anything else
  void take(const std::string& node, int round, const std::string& text, Clock::time_point now);

  /// The views of the last round's ranks that reported recently, with "node" and "cpu_percent".
  nlohmann::ordered_json ranks(Clock::time_point now) const;
  std::vector<OwnTime> own_times(Clock::time_point now) const;

 private:
  struct Rank {
    nlohmann::ordered_json view;
    Clock::time_point heard;
  };
  int round_ = 0;
  std::map<int, Rank> ranks_;
};

}  // namespace ddprun::launcher
