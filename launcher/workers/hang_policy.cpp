#include "launcher/workers/hang_policy.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

using TimePoint = HangClock::time_point;

TimePoint latest_sign(const SignsOfLife& worker, TimePoint since) {
  return std::max({since, worker.last_output.value_or(since), worker.last_beat.value_or(since)});
}

}  // namespace

std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, TimePoint since,
                                         std::chrono::milliseconds timeout, TimePoint now) {
  TimePoint latest_of_all = since;
  for (const SignsOfLife& worker : workers)
    latest_of_all = std::max(latest_of_all, latest_sign(worker, since));

  TimePoint look_again = TimePoint::max();
  std::vector<std::size_t> hung;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].running) continue;
    const TimePoint sign = workers[i].last_beat ? latest_sign(workers[i], since) : latest_of_all;
    if (now >= sign + timeout) {
      hung.push_back(i);
    } else {
      look_again = std::min(look_again, sign + timeout);
    }
  }
  if (hung.empty()) return LookAgain{look_again};
  std::ranges::stable_sort(hung, {}, [&](std::size_t i) { return latest_sign(workers[i], since); });
  return Hung{hung};
}

}  // namespace ddprun::launcher
