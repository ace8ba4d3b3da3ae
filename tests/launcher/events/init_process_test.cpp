#include "launcher/events/signals.h"

#include <csignal>
#include <utility>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

using Counts = SignalsOnce::Counts;

constexpr Sender kParent = 100;
constexpr LoopClock::time_point kNow{1h};

/// SIGUSR1 does not end the job; SIGHUP may be ignored.
struct Rig {
  explicit Rig(bool hang_up = true)
      : signals(kParent,
                [hang_up](int signal) { return signal != SIGUSR1 && (signal != SIGHUP || hang_up); }) {}

  Counts sent(int signal, Sender sender, std::chrono::milliseconds after = 0ms) {
    const Counts counts = signals.counts(signal, sender, ending, kNow + after);
    ending = ending || (counts == Counts::kYes && signal != SIGUSR1);
    return counts;
  }

  SignalsOnce signals;
  bool ending = false;
};

TEST_CASE("a signal that comes directly, and passed on, counts once", "[init_process]") {
  for (const auto& [one, other] : {std::pair(kKernel, kInit), {kInit, kKernel}, {200, 300}, {200, kParent}}) {
    Rig rig;
    CHECK(rig.sent(SIGTERM, one) == Counts::kYes);
    CHECK(rig.sent(SIGTERM, other, 10ms) == Counts::kNo);
    CHECK(rig.sent(SIGTERM, one, 200ms) == Counts::kYes);  // the user's second signal
    CHECK(rig.sent(SIGTERM, other, 210ms) == Counts::kNo);
  }
}

TEST_CASE("two signals from the same sender, of two kinds or at two times are two", "[init_process]") {
  Rig rig;
  CHECK(rig.sent(SIGTERM, kInit) == Counts::kYes);
  CHECK(rig.sent(SIGTERM, kInit) == Counts::kYes);
  CHECK(rig.sent(SIGINT, kKernel) == Counts::kYes);
  CHECK(rig.sent(SIGINT, kKernel, 200ms) == Counts::kYes);  // typed twice
  CHECK(rig.sent(SIGTERM, 200, 1s) == Counts::kYes);
  for (int i = 0; i < 2; ++i)
    for (const Sender sender : {kParent, Sender{200}}) CHECK(rig.sent(SIGUSR1, sender) == Counts::kYes);
}

TEST_CASE("what the parent sends again at once counts if it lives on", "[init_process]") {
  Rig rig;
  CHECK(rig.sent(SIGTERM, kParent) == Counts::kYes);
  CHECK(rig.sent(SIGTERM, kParent, 999ms) == Counts::kIfParentLives);
  CHECK(rig.sent(SIGTERM, kParent, 1s) == Counts::kYes);
}

TEST_CASE("the terminal's hang-up is no second signal, nor SIGTERM beside it", "[init_process]") {
  Rig typed;
  CHECK(typed.sent(SIGINT, kKernel) == Counts::kYes);
  CHECK(typed.sent(SIGHUP, kKernel, 5s) == Counts::kNo);
  Rig twice;
  CHECK(twice.sent(SIGHUP, kParent) == Counts::kYes);
  CHECK(twice.sent(SIGHUP, kKernel, 1ms) == Counts::kNo);
  CHECK(twice.sent(SIGHUP, kParent, 2ms) == Counts::kNo);
  CHECK(twice.sent(SIGTERM, 1, 500ms) == Counts::kNo);
  CHECK(twice.sent(SIGTERM, 1, 2s) == Counts::kYes);
  Rig ignoring(/*hang_up=*/false);  // nohup
  CHECK(ignoring.sent(SIGTERM, 1) == Counts::kYes);
  CHECK(ignoring.sent(SIGTERM, 1, 500ms) == Counts::kYes);
}

}  // namespace
}  // namespace ddprun::launcher
