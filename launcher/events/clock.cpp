#include "launcher/events/clock.h"

#include <cstdio>

#include <ddprun/common/text.h>

namespace ddprun::launcher {

std::string in_seconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string utc_iso(JobClock::Wall::time_point time, int digits) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(time - whole).count();
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, "%06d", static_cast<int>(micros));
  return utc_text(JobClock::Wall::to_time_t(whole), "%Y-%m-%dT%H:%M:%S.") +
         std::string(fraction, static_cast<std::size_t>(digits)) + "Z";
}

}  // namespace ddprun::launcher
