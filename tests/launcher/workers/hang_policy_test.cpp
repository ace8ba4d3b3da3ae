#include "launcher/workers/worker_pipes.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using std::chrono::seconds;

constexpr HangClock::time_point at(int second) { return HangClock::time_point(seconds(second)); }

constexpr int kStart = 100;
constexpr seconds kTimeout{60};

SignsOfLife silent() { return {}; }
SignsOfLife printed(int second) { return {true, at(second), {}}; }
SignsOfLife beaten(int second) { return {true, {}, at(second)}; }
SignsOfLife ended(SignsOfLife worker) {
  worker.running = false;
  return worker;
}

/// On one node, unless others are known of.
std::vector<std::size_t> hung(const std::vector<SignsOfLife>& workers, int now,
                              std::optional<KnownSigns> job = {}) {
  const auto verdict =
      judge_hang(workers, at(kStart), kTimeout, at(now), job.value_or(KnownSigns{{}, at(now)}));
  const auto* held = std::get_if<Hung>(&verdict);
  return held == nullptr ? std::vector<std::size_t>() : held->workers;
}

HangClock::time_point look_again(const std::vector<SignsOfLife>& workers, int now,
                                 std::optional<KnownSigns> job = {}) {
  const auto verdict =
      judge_hang(workers, at(kStart), kTimeout, at(now), job.value_or(KnownSigns{{}, at(now)}));
  REQUIRE(std::holds_alternative<LookAgain>(verdict));
  return std::get<LookAgain>(verdict).at;
}

using Indices = std::vector<std::size_t>;

TEST_CASE("workers that never show a sign of life hang once the timeout has passed since their start",
          "[hang_policy]") {
  CHECK(look_again({silent(), silent()}, 100) == at(160));
  CHECK(look_again({silent(), silent()}, 159) == at(160));
  CHECK(hung({silent(), silent()}, 160) == Indices{0, 1});
}

TEST_CASE("the output of one worker keeps all that never sent a heartbeat alive", "[hang_policy]") {
  CHECK(look_again({printed(150), silent(), silent()}, 200) == at(210));
  CHECK(hung({printed(150), silent(), silent()}, 210).size() == 3);
}

TEST_CASE("a beating worker keeps those that never sent a heartbeat alive", "[hang_policy]") {
  CHECK(look_again({silent(), beaten(150)}, 205) == at(210));
  CHECK(hung({silent(), beaten(150)}, 210) == Indices{0, 1});
}

TEST_CASE("a worker whose heartbeats stop hangs whatever the others do", "[hang_policy]") {
  CHECK(look_again({beaten(199), beaten(140), printed(199)}, 199) == at(200));
  CHECK(hung({beaten(199), beaten(140), printed(199)}, 200) == Indices{1});
}

TEST_CASE("the output of a beating worker counts as a sign of life", "[hang_policy]") {
  CHECK(look_again({{true, at(150), at(110)}}, 200) == at(210));
  CHECK(look_again({{true, at(110), at(150)}}, 200) == at(210));
  CHECK(hung({{true, at(150), at(110)}, beaten(209)}, 210) == Indices{0});
}

TEST_CASE("the earliest time counts when to look again", "[hang_policy]") {
  CHECK(look_again({beaten(130), beaten(120), printed(150)}, 155) == at(180));
}

TEST_CASE("the worker that has been silent longest is named first", "[hang_policy]") {
  CHECK(hung({beaten(103), beaten(101), beaten(102)}, 200) == Indices{1, 2, 0});
  CHECK(hung({printed(105), silent(), printed(103)}, 200) == Indices{1, 2, 0});
}

TEST_CASE("a worker that has ended does not hang", "[hang_policy]") {
  CHECK(hung({ended(silent()), silent()}, 160) == Indices{1});
  CHECK(hung({ended(beaten(110)), beaten(199)}, 200).empty());
  CHECK(look_again({ended(silent()), ended(beaten(110))}, 500) == HangClock::time_point::max());
  CHECK(look_again({}, 500) == HangClock::time_point::max());
}

TEST_CASE("what a worker showed before its end counts for those that never sent a heartbeat",
          "[hang_policy]") {
  CHECK(look_again({ended(printed(155)), silent()}, 160) == at(215));
  CHECK(hung({ended(printed(155)), silent()}, 215) == Indices{1});
  CHECK(look_again({ended(beaten(155)), silent()}, 160) == at(215));
}

TEST_CASE("the signs of another node keep those that never sent a heartbeat alive", "[hang_policy]") {
  CHECK(hung({silent(), silent()}, 170, KnownSigns{at(150), at(169)}).empty());
  CHECK(look_again({silent(), silent()}, 170, KnownSigns{at(150), at(169)}) == at(210));
  CHECK(hung({silent(), silent()}, 211, KnownSigns{at(150), at(210)}) == Indices{0, 1});
  CHECK(hung({printed(155), silent()}, 215, KnownSigns{at(150), at(215)}) == Indices{1, 0});
}

TEST_CASE("what is not known of the other nodes yet makes no worker hang", "[hang_policy]") {
  CHECK(hung({silent()}, 500, KnownSigns{}).empty());
  CHECK(hung({printed(155)}, 500, KnownSigns{at(150), at(214)}).empty());
  CHECK(look_again({silent()}, 500, KnownSigns{}) == HangClock::time_point::max());
  CHECK(hung({printed(155)}, 500, KnownSigns{at(150), at(215)}) == Indices{0});
}

TEST_CASE("a worker whose heartbeats stop hangs whatever is known of the other nodes", "[hang_policy]") {
  CHECK(hung({beaten(140), silent()}, 200, KnownSigns{}) == Indices{0});
  CHECK(hung({beaten(140)}, 200, KnownSigns{at(199), at(199)}) == Indices{0});
}

TEST_CASE("a stop of ddprun itself is nobody's silence", "[hang_policy]") {
  const auto verdict = judge_hang({beaten(110), silent()}, at(500), kTimeout, at(510), {{}, at(510)});
  REQUIRE(std::holds_alternative<LookAgain>(verdict));
  CHECK(std::get<LookAgain>(verdict).at == at(560));
}

}  // namespace
}  // namespace ddprun::launcher
