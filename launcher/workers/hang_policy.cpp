#include "launcher/workers/hang_policy.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

using TimePoint = HangClock::time_point;

TimePoint sign_of(const SignsOfLife& worker, TimePoint since) {
  return std::max({since, worker.last_output.value_or(since), worker.last_beat.value_or(since)});
}

}  // namespace

TimePoint latest_sign(const std::vector<SignsOfLife>& workers, TimePoint since) {
  TimePoint latest = since;
  for (const SignsOfLife& worker : workers) latest = std::max(latest, sign_of(worker, since));
  return latest;
}

std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, TimePoint since,
                                         std::chrono::milliseconds timeout, TimePoint now,
                                         const KnownSigns& job) {
  const TimePoint latest_of_all = std::max(latest_sign(workers, since), job.latest);
  TimePoint look_again = TimePoint::max();
  std::vector<std::size_t> hung;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].running) continue;
    const bool alone = workers[i].last_beat.has_value();
    const TimePoint end = (alone ? sign_of(workers[i], since) : latest_of_all) + timeout;
    if (now < end) {
      look_again = std::min(look_again, end);
    } else if (alone || job.until >= end) {
      hung.push_back(i);
    }
  }
  if (hung.empty()) return LookAgain{look_again};
  std::ranges::stable_sort(hung, {}, [&](std::size_t i) { return sign_of(workers[i], since); });
  return Hung{hung};
}

}  // namespace ddprun::launcher
