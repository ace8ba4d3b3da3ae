#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

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
constexpr int kSlowLooks = 3;  ///< in a row, before a rank is named, and before it no longer is

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

}  // namespace ddprun::launcher
