#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// Rounds in place (--recover=rank): only a lost worker is replaced, and the others go on.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::CoordinatorRig;
using test::failed;
using test::job;
using test::TwoNodes;

Failed lost(int round) {
  return {round, WorkerFailed{ExitStatus::killed(SIGKILL)}, "rank 1 was killed", /*in_place=*/true};
}

TEST_CASE("a lost worker begins a round in place of the same nodes", "[coordinator]") {
  TwoNodes rig(2);
  rig.say(rig.b, lost(0));
  CHECK(rig.last<Lead>(rig.a).round == 1);
  CHECK(rig.count<Stop>(rig.a) == 0);
  rig.obey();
  for (const auto id : rig.ids) {
    const auto start = rig.last<Start>(id);
    CHECK(start.number == 1);
    CHECK(start.in_place);
    CHECK(start.restart_count == 1);
    CHECK(start.reason == "rank 1 was killed; replacing only this rank: restart 1 of 2");
    CHECK(start.master_port == 2001);
    CHECK(start.group_rank == (id == rig.a ? 0 : 1));
  }
  rig.say(rig.a, Succeeded{1});
  rig.say(rig.b, Succeeded{1});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 0);
}

TEST_CASE("workers that are lost before a round in place begins are replaced in it", "[coordinator]") {
  TwoNodes rig(1);
  rig.say(rig.b, lost(0));
  rig.say(rig.a, lost(0));
  rig.obey();
  rig.say(rig.a, lost(0));  // before the start arrived there
  for (const auto id : rig.ids) CHECK(rig.count<Start>(id) == 2);
  CHECK_FALSE(rig.ended());
  rig.say(rig.a, lost(1));
  CHECK(rig.last<End>(rig.b).exit_code == 137);
}

TEST_CASE("a node that must end its workers ends a round in place for all", "[coordinator]") {
  TwoNodes rig(2);
  rig.say(rig.b, lost(0));
  const bool begun = GENERATE(false, true);
  if (begun) rig.obey();
  rig.say(rig.a, Failed{0, WorkerFailed{ExitStatus::exited(7)}, "rank 0 failed"});
  for (const auto id : rig.ids) CHECK(rig.last<Stop>(id).round == 1);
  rig.obey();
  for (const auto id : rig.ids) {
    CHECK(rig.last<Start>(id).number == 2);
    CHECK_FALSE(rig.last<Start>(id).in_place);
  }
}

TEST_CASE("a node that stands by takes a lost node's place, and the others go on", "[coordinator]") {
  auto settings = job(2, 2);
  settings.spares = 1;
  settings.in_place = GENERATE(true, false);
  TwoNodes rig(settings);
  const auto other = rig.join("c"), late = rig.join("d");
  CHECK(rig.last<Waiting>(other).spare);
  CHECK(rig.last<Refused>(late).reason ==
        "node d (10.0.0.4) comes too late: the job 'job' has all 2 nodes, and --spares=1: a (10.0.0.1), b "
        "(10.0.0.2), c (10.0.0.3)");
  rig.lose(rig.a);
  rig.obey();
  const auto start = rig.last<Start>(other);
  CHECK(start.number == 1);
  CHECK(start.in_place == settings.in_place);
  CHECK(start.restart_count == 0);
  if (settings.in_place) {
    CHECK(start.group_rank == 0);
    CHECK(rig.count<Stop>(rig.b) == 0);
    CHECK(rig.last<Start>(rig.b).master_addr == "10.0.0.3");
    CHECK(start.reason ==
          "node a (10.0.0.1) was lost: the connection ended; node c (10.0.0.3) takes its ranks");
  } else {
    CHECK(rig.last<Stop>(rig.b).round == 0);
  }
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a node that has been replaced and stands by may go, a member may not", "[coordinator]") {
  auto settings = job(2, 2);
  settings.spares = 1;
  settings.in_place = GENERATE(true, false);
  TwoNodes rig(settings);
  const auto other = rig.join("c");
  rig.lose(rig.b);
  rig.obey();
  Join returned = rig.wish("b");
  returned.former = {0, 2, 1};
  rig.say(rig.join(returned), Leave{SIGTERM});
  CHECK_FALSE(rig.ended());
  rig.say(other, Leave{SIGTERM});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 143);
}

TEST_CASE("a node that has returned to its own place may not go", "[coordinator]") {
  TwoNodes rig(job(2, 2, /*max_restarts=*/1));
  rig.lose(rig.b);
  Join returned = rig.wish("b");
  returned.former = {0, 2, 1};
  rig.say(rig.join(returned), Leave{SIGTERM});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 143);
}

TEST_CASE("a spare that has fallen silent is not taken, and another may stand by", "[coordinator]") {
  auto settings = job(2, 2, 1);
  settings.spares = 1;
  settings.in_place = true;
  TwoNodes rig(settings);
  const auto silent = rig.join("c");
  rig.silent = {silent};
  rig.pass(13s);
  CHECK(rig.count<Refused>(silent) == 1);
  const auto other = rig.join("d");
  rig.lose(rig.b);
  rig.obey();
  CHECK(rig.count<Start>(silent) == 0);
  CHECK(rig.last<Start>(other).number == 1);
}

TEST_CASE("a node whose workers cannot go on without the lost ones costs no second restart",
          "[coordinator]") {
  auto settings = job(2, 2, 1);
  settings.spares = 1;
  settings.in_place = true;
  const bool spare = GENERATE(true, false), early = GENERATE(true, false);
  TwoNodes rig(settings);
  const auto other = rig.join("c");
  if (spare)
    rig.lose(rig.b);
  else
    rig.say(rig.b, lost(0));
  if (!early) rig.obey();
  rig.say(rig.a, early ? failed(7) : Failed{1, EndedByPeers{}, "the workers cannot continue"});
  CHECK(rig.last<Stop>(rig.a).round == 1);
  rig.obey();
  for (const auto id : {rig.a, spare ? other : rig.b}) {
    CHECK(rig.last<Start>(id).number == 2);
    CHECK_FALSE(rig.last<Start>(id).in_place);
    CHECK(rig.last<Start>(id).restart_count == (spare ? 0 : 1));
  }
}

TEST_CASE("a node that takes a place and dies again and again is refused", "[coordinator]") {
  auto settings = job(2, 2);
  settings.spares = 1;
  settings.in_place = true;
  CoordinatorRig rig(settings);
  const auto join = [&](const char* name) {
    Join wish = rig.wish(name);
    wish.address = "10.0.0.9";
    return rig.join(wish);
  };
  rig.join("a");
  auto in_round = join("b");
  rig.obey();
  auto spare = join("c");
  for (int losses = 1; losses < 10; ++losses) {  // by turns
    rig.lose(in_round);
    rig.obey();
    in_round = spare;
    spare = join(losses % 2 == 1 ? "b" : "c");
    CHECK(rig.count<Refused>(spare) == (losses < 9 ? 0 : 1));
  }
}

TEST_CASE("no round in place begins once a node has succeeded, or goes on without a lost node",
          "[coordinator]") {
  TwoNodes rig(2);
  const bool succeeded = GENERATE(false, true);
  if (succeeded) {
    rig.say(rig.a, Succeeded{0});
    rig.say(rig.b, lost(0));
    CHECK(rig.last<Stop>(rig.a).round == 0);
  } else {
    rig.say(rig.b, lost(0));
    rig.lose(rig.b);
    CHECK(rig.last<Stop>(rig.a).round == 1);
  }
  CHECK(rig.count<Start>(rig.a) == 1);
}

}  // namespace
}  // namespace ddprun::launcher
