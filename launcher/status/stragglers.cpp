#include "launcher/status/stragglers.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

// Less than this per step is noise, however large the factor.
constexpr double kLeastExcess = 0.0005;

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_of(const std::vector<OwnTime>& times, double (*part)(const OwnTime&)) {
  std::vector<double> values;
  for (const OwnTime& time : times) values.push_back(part(time));
  return lower_median(std::move(values));
}

bool is_slow(double seconds, double median) {
  return median > 0 && seconds >= kSlowFactor * median && seconds - median >= kLeastExcess;
}

}  // namespace

std::string describe(const Straggler& straggler) {
  char text[200];
  std::snprintf(text, sizeof text, " is %.1f times slower than the median since step %lld: %s",
                straggler.factor, static_cast<long long>(straggler.since_step),
                straggler.by_data ? "data, not compute" : "compute, not data");
  return "rank " + std::to_string(straggler.rank) +
         (straggler.node.empty() ? "" : " on node " + printable(straggler.node)) + text;
}

nlohmann::ordered_json to_json(const Straggler& straggler) {
  return {{"rank", straggler.rank},
          {"factor", straggler.factor},
          {"since_step", straggler.since_step},
          {"cause", straggler.by_data ? "data" : "compute"}};
}

std::vector<Straggler> slow_ranks(const std::vector<OwnTime>& times) {
  std::vector<Straggler> slow;
  if (times.size() < 2) return slow;
  const double compute = median_of(times, [](const OwnTime& time) { return time.compute; });
  const double own = median_of(times, [](const OwnTime& time) { return time.compute + time.data; });
  for (const OwnTime& time : times) {
    const double all = time.compute + time.data;
    if (is_slow(time.compute, compute))
      slow.push_back({time.rank, time.compute / compute, time.step, false, time.node});
    else if (is_slow(all, own))
      slow.push_back({time.rank, all / own, time.step, true, time.node});
  }
  return slow;
}

std::vector<Straggler> StragglerWatch::look(const std::vector<OwnTime>& times) {
  std::map<int, Straggler> slow;
  for (const Straggler& straggler : slow_ranks(times)) slow.emplace(straggler.rank, straggler);
  std::vector<Straggler> named;
  for (const OwnTime& time : times) {
    State& state = states_[time.rank];
    const auto found = slow.find(time.rank);
    if (found == slow.end()) {
      state.slow_looks = 0;
      if (++state.fast_looks >= kSlowLooks) state.named = false;
      continue;
    }
    state.fast_looks = 0;
    const auto since = state.slow_looks == 0 && !state.named ? time.step : state.straggler.since_step;
    state.straggler = found->second;
    state.straggler.since_step = since;
    if (++state.slow_looks < kSlowLooks || state.named) continue;
    state.named = true;
    named.push_back(state.straggler);
  }
  return named;
}

std::vector<Straggler> StragglerWatch::slow_now() const {
  std::vector<Straggler> slow;
  for (const auto& [rank, state] : states_)
    if (state.named) slow.push_back(state.straggler);
  return slow;
}

}  // namespace ddprun::launcher
