#include "launcher/events/signals.h"

#include <csignal>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a signal that comes directly and through the init process counts once", "[init_process]") {
  const LoopClock::time_point now{1h};
  for (const bool first : {false, true}) {
    SignalsOnce signals;
    CHECK(signals.counts(SIGTERM, first, now));
    CHECK_FALSE(signals.counts(SIGTERM, !first, now + 10ms));
    CHECK(signals.counts(SIGTERM, first, now + 20ms));  // the user's second signal
    CHECK_FALSE(signals.counts(SIGTERM, !first, now + 30ms));
  }
}

TEST_CASE("two signals on the same way, of two kinds or at two times are two", "[init_process]") {
  const LoopClock::time_point now{1h};
  SignalsOnce signals;
  CHECK(signals.counts(SIGTERM, true, now));
  CHECK(signals.counts(SIGTERM, true, now));
  CHECK(signals.counts(SIGINT, false, now));
  CHECK(signals.counts(SIGTERM, false, now + 1s));
}

}  // namespace
}  // namespace ddprun::launcher
