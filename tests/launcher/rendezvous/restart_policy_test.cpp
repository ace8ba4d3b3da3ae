#include "launcher/events/restart_policy.h"

#include <csignal>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;

AttemptEnd exited_with(int code) { return WorkerFailed{ExitStatus::exited(code)}; }
AttemptEnd killed(int signal) { return WorkerFailed{ExitStatus::killed(signal)}; }

TEST_CASE("codes, ranges and signals make up --restart-on-codes", "[restart_policy]") {
  const auto codes = parse_restart_codes("1,3-5,SIGKILL,term,139");
  for (const int code : {1, 3, 4, 5, 137, 143, 139}) CHECK(codes.contains(code));
  for (const int code : {2, 6, 9, 15, 138, 255}) CHECK_FALSE(codes.contains(code));
  CHECK(parse_restart_codes("SIGRTMIN+1").contains(128 + SIGRTMIN + 1));
}

TEST_CASE("an invalid list of codes is refused", "[restart_policy]") {
  for (const char* text : {"", ",", "1,", "0", "256", "-1", "1-", "5-3", "SIGNOPE", "SIG", "1 ,2", "1-2-3",
                           "x", "99999999999", "SIGKILL-SIGTERM"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_restart_codes(text), UsageError);
  }
  CHECK_THROWS_WITH(parse_restart_codes("1,x\x1b"),
                    ContainsSubstring("--restart-on-codes: expected") && ContainsSubstring("got 'x?'"));
}

TEST_CASE("failures and hangs are tried again while the budget lasts, nothing else is", "[restart_policy]") {
  struct Row {
    const char* name;
    AttemptEnd end;
    int max_restarts;
    int used;
    bool restart;
    int exit_code;
  };
  const Row rows[] = {
      {"success", AllSucceeded{}, 3, 0, false, 0},
      {"failure without restarts", exited_with(7), 0, 0, false, 7},
      {"failure", exited_with(7), 3, 0, true, 7},
      {"failure, last restart", exited_with(7), 3, 2, true, 7},
      {"failure, budget used", exited_with(7), 3, 3, false, 7},
      {"death by a signal", killed(SIGSEGV), 1, 0, true, 139},
      {"death by a signal, budget used", killed(SIGSEGV), 1, 1, false, 139},
      {"hang", Hung{}, 1, 0, true, 124},
      {"hang, budget used", Hung{}, 1, 1, false, 124},
      {"timeout", TimedOut{}, 9, 0, false, 124},
      {"the user's signal", SignalReceived{SIGTERM}, 9, 0, false, 143},
      {"no start", StartFailed{127}, 9, 0, false, 127},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    RestartSettings settings;
    settings.max_restarts = row.max_restarts;
    const Decision decision = decide(settings, row.end, row.used, 1s);
    CHECK(decision.restart == row.restart);
    CHECK(decision.exit_code == row.exit_code);
    CHECK(decision.restarts_used == row.used + (row.restart ? 1 : 0));
    CHECK(decision.delay == 0ms);
    CHECK_FALSE(decision.reason.empty());
  }
}

TEST_CASE("only listed codes are tried again, a hang as 124", "[restart_policy]") {
  RestartSettings settings;
  settings.max_restarts = 1;
  settings.codes = parse_restart_codes("3,SIGKILL");
  CHECK(decide(settings, exited_with(3), 0, 1s).restart);
  CHECK(decide(settings, exited_with(137), 0, 1s).restart);
  CHECK(decide(settings, killed(SIGKILL), 0, 1s).restart);
  CHECK_FALSE(decide(settings, exited_with(4), 0, 1s).restart);
  CHECK_FALSE(decide(settings, Hung{}, 0, 1s).restart);
  CHECK_THAT(decide(settings, exited_with(4), 0, 1s).reason, ContainsSubstring("exit code 4 is not among"));
  settings.codes = parse_restart_codes("124");
  CHECK(decide(settings, Hung{}, 0, 1s).restart);
}

TEST_CASE("the delay doubles up to a minute, or stays if it began longer", "[restart_policy]") {
  RestartSettings settings;
  settings.max_restarts = 100;
  const auto delay = [&](std::chrono::milliseconds backoff, int used) {
    settings.backoff = backoff;
    return decide(settings, exited_with(1), used, 0s).delay;
  };
  CHECK(delay(1500ms, 0) == 1500ms);
  CHECK(delay(1500ms, 1) == 3s);
  CHECK(delay(1500ms, 2) == 6s);
  CHECK(delay(1500ms, 6) == 60s);
  CHECK(delay(1500ms, 99) == 60s);
  CHECK(delay(90s, 0) == 90s);
  CHECK(delay(90s, 5) == 90s);
  CHECK(delay(0ms, 50) == 0ms);
}

TEST_CASE("an attempt that lives long enough resets budget and delay", "[restart_policy]") {
  RestartSettings settings;
  settings.max_restarts = 2;
  settings.backoff = 1s;
  settings.window = 60s;
  const Decision early = decide(settings, exited_with(1), 2, 59'999ms);
  CHECK_FALSE(early.restart);
  const Decision late = decide(settings, exited_with(1), 2, 60s);
  CHECK(late.restart);
  CHECK(late.restarts_used == 1);
  CHECK(late.delay == 1s);
  CHECK(late.reason == "restart 1 of 2 in 1 s");
  settings.window = std::nullopt;
  CHECK_FALSE(decide(settings, exited_with(1), 2, 1h).restart);
}

TEST_CASE("restarts in a row without a new step are counted", "[restart_policy]") {
  RestartSettings settings;
  settings.max_stalled = 2;
  StallWatch stalls;
  stalls.add(0, {0, 41}, "rank 0 failed: exit code 3");
  stalls.add(1, {0, 40}, "rank 1 failed: exit code 4");
  CHECK_FALSE(stalls.ends_job(settings));
  stalls.add(2, {0, 42}, "x");  // a new one
  stalls.add(3, {}, "rank 0 failed: exit code 5");
  CHECK_FALSE(stalls.ends_job(settings));
  stalls.add(4, {0, 42}, "no sign of life");
  CHECK(stalls.ends_job(settings));
  CHECK(stalls.reason() == "2 restarts in a row made no progress after step 42 (--max-stalled-restarts)");
  CHECK(stalls.report() == std::vector<std::string>{"attempt 2, which reached step 42: x",
                                                    "attempt 3, without a step: rank 0 failed: exit code 5",
                                                    "attempt 4, which reached step 42: no sign of life"});
  settings.max_stalled = 0;
  CHECK_FALSE(stalls.ends_job(settings));
}

TEST_CASE("a later epoch is further, and who counts anew or reports no step is not judged",
          "[restart_policy]") {
  RestartSettings settings;
  settings.max_stalled = 1;
  StallWatch epochs, anew, silent;
  for (int i = 0; i < 5; ++i) {
    epochs.add(i, {i, 10 - i}, "x");
    anew.add(i, {0, 10, i == 1}, "x");
    silent.add(i, {}, "x");
    CHECK_FALSE(epochs.ends_job(settings));
    CHECK_FALSE(silent.ends_job(settings));
    CHECK_FALSE(anew.ends_job(settings));
  }
}

TEST_CASE("of many attempts without a new step the first and the last ones are shown", "[restart_policy]") {
  StallWatch stalls;
  for (int i = 0; i < 30; ++i) stalls.add(i, {0, 7}, "x");
  const auto lines = stalls.report();
  REQUIRE(lines.size() == 10);
  CHECK(lines[0] == "attempt 0, which reached step 7: x");
  CHECK(lines[1] == "21 more attempts");
  CHECK(lines[2] == "attempt 22, which reached step 7: x");
  CHECK(lines[9] == "attempt 29, which reached step 7: x");
}

}  // namespace
}  // namespace ddprun::launcher
