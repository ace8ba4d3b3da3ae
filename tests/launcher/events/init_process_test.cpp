#include "launcher/events/signals.h"

#include <csignal>
#include <utility>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a signal that comes directly and through the init process counts once", "[init_process]") {
  const LoopClock::time_point now{1h};
  for (const auto& [one, other] :
       {std::pair(Sender::kOther, Sender::kInit), {Sender::kInit, Sender::kOther}}) {
    SignalsOnce signals;
    CHECK(signals.counts(SIGTERM, one, now));
    CHECK_FALSE(signals.counts(SIGTERM, other, now + 10ms));
    CHECK(signals.counts(SIGTERM, one, now + 20ms));  // the user's second signal
    CHECK_FALSE(signals.counts(SIGTERM, other, now + 30ms));
  }
}

TEST_CASE("two signals on the same way, of two kinds or at two times are two", "[init_process]") {
  const LoopClock::time_point now{1h};
  SignalsOnce signals;
  CHECK(signals.counts(SIGTERM, Sender::kInit, now));
  CHECK(signals.counts(SIGTERM, Sender::kInit, now));
  CHECK(signals.counts(SIGINT, Sender::kOther, now));
  CHECK(signals.counts(SIGTERM, Sender::kOther, now + 1s));
}

TEST_CASE("the signal of a parent's death counts once, however many threads the parent has",
          "[init_process]") {
  const LoopClock::time_point now{1h};
  SignalsOnce signals;
  CHECK(signals.counts(SIGTERM, Sender::kDeadParent, now));
  for (int i = 1; i < 12; ++i) CHECK_FALSE(signals.counts(SIGTERM, Sender::kDeadParent, now + i * 1ms));
  CHECK(signals.counts(SIGTERM, Sender::kOther, now + 20ms));
}

}  // namespace
}  // namespace ddprun::launcher
