#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// What a failed, or a successful, round leads to.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::failed;
using test::job;
using test::TwoNodes;

TEST_CASE("the first failure ends the job everywhere with its exit code", "[coordinator]") {
  TwoNodes rig;
  rig.say(rig.b, failed(7));
  rig.say(rig.a, failed(9));
  for (const auto id : rig.ids) {
    CHECK(rig.count<End>(id) == 1);
    CHECK(rig.last<End>(id) == End{7, "rank 0 failed"});
  }
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 7);
}

TEST_CASE("an end that must not be retried ends the job despite restarts left", "[coordinator]") {
  struct Row {
    AttemptEnd end;
    int exit_code;
    const char* why;
  };
  const Row rows[] = {{TimedOut{}, 124, "--timeout ends the job"},
                      {SignalReceived{SIGTERM}, 143, "SIGTERM ends the job"},
                      {StartFailed{127}, 127, "the program cannot be started"}};
  for (const Row& row : rows) {
    TwoNodes rig(3);
    rig.say(rig.a, Failed{0, row.end, "it went wrong"});
    CHECK(rig.last<End>(rig.b).exit_code == row.exit_code);
    CHECK(rig.last<End>(rig.b).reason == std::string("it went wrong; not restarted: ") + row.why);
  }
}

TEST_CASE("a failure restarts all nodes once the last worker has ended", "[coordinator]") {
  TwoNodes rig(1);
  rig.say(rig.a, failed(7));
  for (const auto id : rig.ids) CHECK(rig.last<Stop>(id) == Stop{0, "rank 0 failed; restart 1 of 1"});
  rig.say(rig.b, Ended{0});
  rig.pass(100s);
  CHECK(rig.count<Lead>(rig.a) == 1);
  rig.say(rig.a, Ended{0});
  CHECK(rig.last<Lead>(rig.a).round == 1);
  rig.obey();
  for (const auto id : rig.ids) CHECK(rig.last<Start>(id).number == 1);
  rig.say(rig.a, failed(8, 1));
  CHECK(rig.last<End>(rig.b) == End{8, "rank 0 failed; not restarted: --max-restarts=1 is used up"});
}

TEST_CASE("a hang is retried, and finally ends with 124", "[coordinator]") {
  TwoNodes rig(1);
  rig.say(rig.a, Failed{0, Hung{}, "rank 0 hangs"});
  rig.obey();
  CHECK(rig.round_of(rig.b) == 1);
  rig.say(rig.b, Failed{1, Hung{}, "rank 1 hangs"});
  CHECK(rig.last<End>(rig.a).exit_code == 124);
}

TEST_CASE("all nodes dump their stacks after a hang or a timeout, and after nothing else", "[coordinator]") {
  for (const auto& [end, dump] : {std::pair<AttemptEnd, bool>(Hung{}, true),
                                  {TimedOut{}, true},
                                  {WorkerFailed{ExitStatus::exited(124)}, false}}) {
    TwoNodes rig;
    rig.say(rig.a, Failed{0, end, "it went wrong"});
    CHECK(rig.last<End>(rig.b) == End{124, "it went wrong", dump});
  }
  TwoNodes rig(1);
  rig.say(rig.a, Failed{0, Hung{}, "rank 0 hangs"});
  CHECK(rig.last<Stop>(rig.b) == Stop{0, "rank 0 hangs; restart 1 of 1", true});
}

TEST_CASE("each pause before a restart is longer, counted from the last worker's end", "[coordinator]") {
  auto settings = job(2, 2, 2);
  settings.restarts.backoff = 1s;
  TwoNodes rig(settings);
  for (int round = 0; round < 2; ++round) {
    rig.say(rig.a, failed(7, round));
    rig.pass(5s);
    rig.obey();
    rig.pass((round + 1) * 1s - 1ms);
    rig.obey();
    CHECK(rig.round_of(rig.a) == -1);
    rig.pass(1ms);
    rig.obey();
    CHECK(rig.round_of(rig.a) == round + 1);
  }
}

TEST_CASE("only the first failure of a round uses a restart", "[coordinator]") {
  TwoNodes rig(2);
  rig.say(rig.a, failed(7));
  rig.say(rig.b, failed(7));
  rig.obey();
  CHECK(rig.count<Stop>(rig.a) == 1);
  rig.say(rig.a, failed(7, 1));
  CHECK(rig.last<Stop>(rig.a).reason == "rank 0 failed; restart 2 of 2");
}

TEST_CASE("a node outside the round cannot fail it", "[coordinator]") {
  CoordinatorRig rig(job(1, 2));
  const auto ids = rig.form({"a", "b"});
  const auto spare = rig.join("c");
  rig.say(spare, failed(7));
  rig.say(spare, Succeeded{0});
  rig.say(spare, Ended{0});
  CHECK_FALSE(rig.ended());
  rig.say(ids[0], Succeeded{0});
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a round that lives long enough resets the budget", "[coordinator]") {
  auto settings = job(2, 2, 1);
  settings.restarts.window = 60s;
  TwoNodes rig(settings);
  for (int round = 0; round < 3; ++round) {
    rig.pass(60s);
    rig.say(rig.a, failed(7, round));
    rig.obey();
    REQUIRE(rig.round_of(rig.b) == round + 1);
  }
  rig.pass(59s);
  rig.say(rig.a, failed(7, 3));
  CHECK(rig.ended());
}

TEST_CASE("the time before a leader fails to lead does not reset the budget", "[coordinator]") {
  auto settings = job(1, 1, 1);
  settings.restarts.window = 60s;
  CoordinatorRig rig(settings);
  const auto id = rig.form({"a"}).front();
  rig.pass(59s);
  rig.say(id, failed(7));
  rig.say(id, Ended{0});
  rig.pass(1s);
  rig.say(id, failed(7, 1));
  CHECK(rig.ended());
}

TEST_CASE("a leader without a port ends the job", "[coordinator]") {
  CoordinatorRig rig(job(2, 2, 3));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.say(a, Failed{0, StartFailed{125}, "no port"});
  CHECK(rig.last<End>(b).exit_code == 125);
}

TEST_CASE("a failure with exit code 0 does not end the job with success", "[coordinator]") {
  for (const AttemptEnd& end : {AttemptEnd(AllSucceeded{}), AttemptEnd(WorkerFailed{})}) {
    TwoNodes rig;
    rig.say(rig.a, Failed{0, end, "nonsense"});
    CHECK(rig.last<End>(rig.b) == End{125, "nonsense"});
  }
}

TEST_CASE("a node's text is passed on printable and short", "[coordinator]") {
  TwoNodes rig;
  rig.say(rig.a, Failed{0, Hung{}, "\x1b[2Jbad\nline " + std::string(10'000, 'x')});
  CHECK_THAT(rig.last<End>(rig.b).reason, ContainsSubstring("?[2Jbad?line xxx"));
  CHECK(rig.last<End>(rig.b).reason.size() < 4096);
}

TEST_CASE("the job succeeds when all nodes have", "[coordinator]") {
  TwoNodes rig(3);
  rig.say(rig.a, Succeeded{0});
  rig.say(rig.a, Succeeded{0});
  rig.pass(1000s);
  CHECK_FALSE(rig.ended());
  rig.say(rig.b, Succeeded{0});
  for (const auto id : rig.ids) CHECK(rig.last<End>(id) == End{0, "all workers succeeded"});
}

TEST_CASE("a node that has succeeded may go", "[coordinator]") {
  TwoNodes rig;
  rig.say(rig.a, Succeeded{0});
  rig.lose(rig.a);
  CHECK_FALSE(rig.ended());
  rig.say(rig.b, Succeeded{0});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 0);
  CHECK(rig.count<End>(rig.a) == 0);
}

TEST_CASE("a failure after the success of others counts and restarts those too", "[coordinator]") {
  TwoNodes rig(1);
  rig.say(rig.a, Succeeded{0});
  rig.say(rig.b, failed(7));
  rig.obey();
  CHECK(rig.round_of(rig.a) == 1);
  rig.say(rig.b, Succeeded{1});
  CHECK_FALSE(rig.ended());
  rig.say(rig.a, Succeeded{1});
  CHECK(rig.ended());
}

TEST_CASE("messages of an earlier round are ignored", "[coordinator]") {
  TwoNodes rig(2);
  rig.say(rig.a, failed(7));
  rig.obey();
  for (const auto id : rig.ids) {
    rig.say(id, failed(9));
    rig.say(id, Succeeded{0});
    rig.say(id, Ended{0});
    rig.say(id, Leading{0, 9});
    CHECK(rig.round_of(id) == 1);
  }
  CHECK_FALSE(rig.ended());
}

}  // namespace
TEST_CASE("a job ends when its restarts bring no new step, whichever node reports them", "[coordinator]") {
  auto settings = job(2, 2, 9);
  settings.restarts.max_stalled = 2;
  CoordinatorRig rig(settings);
  const auto a = rig.join("a"), b = rig.join("b");
  const auto fail_at = [&](int round, int step) {
    rig.obey();
    rig.say(b, failed(7, round));
    rig.say(b, Ended{round});
    rig.say(a, Ended{round, {0, step}});
    rig.pass(std::chrono::seconds(1));
  };
  fail_at(0, 41);
  fail_at(1, 50);
  fail_at(2, 50);
  CHECK_FALSE(rig.ended());
  fail_at(3, 49);
  CHECK(
      rig.last<End>(a) ==
      End{7,
          "not restarted: 2 restarts in a row made no progress after step 50 (--max-stalled-restarts); "
          "attempt 1, "
          "which reached step 50: rank 0 failed; attempt 2, which reached step 50: rank 0 failed; attempt 3, "
          "which reached step 49: rank 0 failed"});
}

}  // namespace ddprun::launcher
