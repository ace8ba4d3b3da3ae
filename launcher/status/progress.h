#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/status.h>
#include "launcher/events/clock.h"
#include "launcher/events/restart_policy.h"

namespace ddprun::launcher {

/// Seconds that a rank spends on its own work in a step, without waiting for others: where collectives keep
/// all ranks in step, only these show which one is slow.
struct OwnTime {
  int rank = 0;
  std::int64_t step = 0;  ///< the latest
  double compute = 0;
  double data = 0;
  std::string node = {};  ///< empty: this one
};

/// A rank that slows down the others.
struct Straggler {
  int rank = 0;
  double factor = 1;  ///< relative to the median rank
  std::int64_t since_step = 0;
  bool by_data = false;   ///< it waits for its input; if false, it computes longer
  std::string node = {};  ///< empty: this one
  bool operator==(const Straggler&) const = default;
};

/// "rank 3 is 1.8 times slower than the median since step 1200: compute, not data"
std::string describe(const Straggler& straggler);

/// {"rank": 3, "factor": 1.8, "since_step": 1200, "cause": "compute"}, or "data"
nlohmann::ordered_json to_json(const Straggler& straggler);

constexpr int kLeastSteps = 5;  ///< the least that an own time must cover to count
constexpr double kSlowFactor = 1.5;
constexpr int kSlowLooks = 3;  ///< in a row, until a rank is named, or is no longer named

/// The ranks that take at least kSlowFactor times the median, in compute or in compute and data together. For
/// an even number of ranks the median is the lower middle one, so that one of two can be slow.
std::vector<Straggler> slow_ranks(const std::vector<OwnTime>& times);

/// Names ranks that have been slow for a while.
class StragglerWatch {
 public:
  /// Takes the current times of the ranks, about once a second. returns those that are newly named
  std::vector<Straggler> look(const std::vector<OwnTime>& times);

  /// Those that are slow now.
  std::vector<Straggler> slow_now() const;

 private:
  struct State {
    Straggler straggler;
    int slow_looks = 0, fast_looks = 0;
    bool named = false;
  };
  std::map<int, State> states_;  ///< by rank
};

/// The pace of a worker's steps, over about the last ten seconds, without evaluations and checkpoints.
struct Pace {
  double step_seconds = 0;
  double samples_per_second = 0;  ///< 0: unknown
  /// Per step; nullopt: not reported.
  std::optional<double> data, compute, communication;
  std::int64_t steps = 0;  ///< over which it is measured
};

/// What a worker has reported through its status channel, and conclusions from it.
class Progress {
 public:
  using Clock = LoopClock;

  /// Takes bytes from the channel. Drops a line that is not a status, or too long.
  void add(std::string_view bytes, Clock::time_point now);

  const WorkerStatus& latest() const { return latest_; }
  std::optional<std::int64_t> first_step() const { return first_step_; }  ///< that it has reported
  const Reached& reached() const { return reached_; }
  std::optional<Clock::time_point> said_at() const { return said_at_; }  ///< nullopt: never
  std::uint64_t garbage_lines() const { return garbage_; }

  /// nullopt: it has not reported two steps.
  std::optional<Pace> pace() const;

 private:
  struct Point {
    Clock::time_point at;
    WorkerStatus status;
  };
  void take_line(std::string_view line, Clock::time_point now);

  WorkerStatus latest_;
  std::optional<std::int64_t> first_step_;
  Reached reached_;
  std::optional<Clock::time_point> said_at_;
  std::uint64_t garbage_ = 0;
  std::string partial_;    ///< of a line, at most kMaxStatusLine
  bool skipping_ = false;  ///< the rest of an overlong line
  std::deque<Point> window_;
};

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
