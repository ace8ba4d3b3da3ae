#include <ddprun/train/loop/step_memory.h>

#include "tests/support/catch.h"

using namespace ddprun::train;
using namespace std::chrono_literals;

TEST_CASE("copies of the state take a 400th of the time, by the shorter of the last two", "[step_memory]") {
  CopyPause pause;
  CHECK(pause.next() == Clock::time_point());
  auto now = Clock::time_point(1h);
  const auto pause_after = [&](Clock::duration took) {
    const auto begin = std::exchange(now, now + took);
    pause.copied(begin, now);
    return pause.next() - now;
  };
  CHECK(pause_after(2ms) == 800ms);
  CHECK(pause_after(50ms) == 800ms);  // interrupted
  CHECK(pause_after(50ms) == 20s);    // the state has grown
  CHECK(pause_after(1ms) == 400ms);
}
