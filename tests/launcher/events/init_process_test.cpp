#include "launcher/events/signals.h"

#include <csignal>
#include <utility>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a signal that comes directly, and passed on, counts once", "[init_process]") {
  const LoopClock::time_point now{1h};
  for (const auto& [one, other] : {std::pair(kKernel, kInit), {kInit, kKernel}, {100, 200}}) {
    SignalsOnce signals;
    CHECK(signals.counts(SIGTERM, one, now));
    CHECK_FALSE(signals.counts(SIGTERM, other, now + 10ms));
    CHECK(signals.counts(SIGTERM, one, now + 200ms));  // the user's second signal
    CHECK_FALSE(signals.counts(SIGTERM, other, now + 210ms));
  }
}

TEST_CASE("two signals from the same sender, of two kinds or at two times are two", "[init_process]") {
  const LoopClock::time_point now{1h};
  SignalsOnce signals;
  CHECK(signals.counts(SIGTERM, kInit, now));
  CHECK(signals.counts(SIGTERM, kInit, now));
  CHECK(signals.counts(SIGINT, kKernel, now));
  CHECK(signals.counts(SIGINT, kKernel, now + 200ms));  // typed twice
  CHECK(signals.counts(SIGTERM, 100, now + 1s));
}

TEST_CASE("a signal that its sender sends again at once is told", "[init_process]") {
  const LoopClock::time_point now{1h};
  SignalsOnce signals;
  CHECK_FALSE(signals.comes_again(SIGTERM, 100, now));
  CHECK(signals.counts(SIGTERM, 100, now));
  CHECK(signals.comes_again(SIGTERM, 100, now + 999ms));
  CHECK_FALSE(signals.comes_again(SIGTERM, 100, now + 1s));
  CHECK_FALSE(signals.comes_again(SIGTERM, 200, now + 1ms));
  CHECK_FALSE(signals.comes_again(SIGINT, 100, now + 1ms));
}

}  // namespace
}  // namespace ddprun::launcher
