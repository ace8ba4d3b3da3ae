#include <chrono>
#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// Nodes that are taken out of a job: ddpctl drain, and a signal to one node of a job with spares.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::CoordinatorRig;
using test::job;
using test::TwoNodes;

CoordinatorSettings with_spare(bool in_place) {
  auto settings = job(2, 2);
  settings.spares = 1;
  settings.in_place = in_place;
  return settings;
}

TEST_CASE("a drained node's workers are killed at once where the others can go on with a spare",
          "[coordinator]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  CHECK(rig.drain("b", /*in_place=*/true).empty());
  CHECK(rig.last<Stop>(rig.b) == Stop{0, "node 'b' is drained", false, {}, SIGKILL});
  CHECK(rig.last<End>(rig.b) == End{0, "node 'b' is drained"});
  CHECK(rig.count<Stop>(rig.a) == 0);
  rig.obey();
  CHECK(rig.last<Start>(rig.a).in_place);
  CHECK(rig.last<Start>(spare).group_rank == 1);
  CHECK(rig.last<Start>(spare).restarts_used == 0);
  rig.lose(rig.b);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a spare of the drained node's name goes, too, and takes no ranks", "[coordinator]") {
  auto settings = with_spare(true);
  settings.spares = 2;
  TwoNodes rig(settings);
  const auto same_name = rig.join("b");
  const auto spare = rig.join("c");
  CHECK(rig.drain("b", /*in_place=*/true).empty());
  CHECK(rig.last<End>(same_name) == End{0, "node 'b' is drained"});
  rig.obey();
  CHECK(rig.count<Start>(same_name) == 0);
  CHECK(rig.last<Start>(spare).group_rank == 1);
  CHECK(rig.last<Start>(rig.a).in_place);
}

TEST_CASE("else all workers end, and start again without the node once its own have ended", "[coordinator]") {
  const bool by_signal = GENERATE(true, false);
  TwoNodes rig(with_spare(GENERATE(true, false)));
  const auto spare = rig.join("c");
  if (by_signal)
    rig.say(rig.b, Leave{SIGTERM});
  else
    CHECK(rig.drain("b", /*in_place=*/false).empty());
  CHECK(rig.count<Stop>(rig.b) == (by_signal ? 0 : 1));
  CHECK(rig.last<Stop>(rig.a).user_signal == SIGTERM);
  rig.say(rig.a, Ended{0});
  rig.pass(5s);
  CHECK(rig.count<Start>(spare) == 0);  // b may still be saving
  rig.say(rig.b, Ended{0});
  CHECK(rig.last<End>(rig.b).exit_code == (by_signal ? 143 : 0));
  rig.obey();
  CHECK_FALSE(rig.last<Start>(rig.a).in_place);
  CHECK(rig.last<Start>(spare).group_rank == 1);
  CHECK(rig.last<Start>(rig.a).restarts_used == 0);
}

TEST_CASE("as many signals as there are nodes end the job, spares or not", "[coordinator]") {
  TwoNodes rig(with_spare(true));
  rig.join("c");
  rig.say(rig.b, Leave{SIGTERM});
  CHECK_FALSE(rig.ended());
  rig.say(rig.a, Leave{SIGTERM});
  REQUIRE(rig.ended());
  CHECK(rig.last<End>(rig.b).user_signal == SIGTERM);  // it waits for a's workers
}

TEST_CASE("a node that cannot be drained stays, and the reason is told", "[coordinator]") {
  CHECK(CoordinatorRig(with_spare(true)).drain("a", true) == "the job has not begun");
  TwoNodes rig(with_spare(true));
  CHECK(rig.drain("x", true) == "no node of the job is called 'x'; it has a (10.0.0.1), b (10.0.0.2)");
  CHECK(rig.drain("b", true) ==
        "without node 'b' the job would have 1 of the 2 nodes that it needs: start another one first (a job "
        "with --spares takes it in)");
  CHECK(rig.count<Stop>(rig.b) == 0);
  const auto spare = rig.join("c");
  CHECK(rig.drain("c", true).empty());  // a spare just goes
  CHECK(rig.last<End>(spare).exit_code == 0);
  CHECK(rig.count<Stop>(rig.a) == 0);
  rig.end(7, "it is over");
  CHECK(rig.drain("b", true) == "the job is ending");
}

/// Node "a" has the coordinator; the nodes after the first `nodes` stand by.
struct WithSuccessors : CoordinatorRig {
  WithSuccessors(int nodes, const std::vector<std::string>& names, bool in_place = false)
      : CoordinatorRig([&] {
          auto settings = job(nodes, nodes);
          settings.spares = static_cast<int>(names.size()) - nodes;
          settings.in_place = in_place;
          settings.has_successors = true;
          return settings;
        }()) {
    for (const std::string& name : names) {
      Join join = wish(name);
      join.id = name;
      ids.push_back(this->join(join));
      obey();
    }
  }

  std::vector<Id> ids;
};

constexpr const char* kTooFewVotes =
    "without node 'c' fewer than half of the last round's nodes would be left: wait until the next round has "
    "begun";

TEST_CASE("no second node is drained before the next round if a minority of the last one would be left",
          "[coordinator]") {
  const bool in_place = GENERATE(true, false);
  WithSuccessors rig(3, {"a", "b", "c", "s", "t"}, in_place);
  REQUIRE(rig.round_of(rig.ids[2]) == 0);
  CHECK(rig.drain("b", in_place).empty());
  CHECK(rig.drain("c", in_place) == kTooFewVotes);
  rig.obey();
  CHECK(rig.last<Start>(rig.ids[0]).number == 1);
  CHECK(rig.drain("c", in_place) == kTooFewVotes);  // whoever has not heard of round 1 could follow round 0
  rig.pass(5s);                                     // all have
  CHECK(rig.drain("c", in_place).empty());
  rig.obey();
  CHECK_FALSE(rig.ended());
  CHECK(rig.round_of(rig.ids[0]) == 2);
}

TEST_CASE("a node that leaves by a signal is no vote, but a drained one still is", "[coordinator]") {
  WithSuccessors rig(4, {"a", "b", "c", "d", "s", "t", "u"});
  CHECK(rig.drain("b", false).empty());
  CHECK(rig.drain("d", false).empty());  // half are left
  rig.say(rig.ids[2], Leave{SIGTERM});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->user_signal == SIGTERM);
}

TEST_CASE("the coordinator's node is not handed over to nodes without a vote", "[takeover]") {
  const bool by_signal = GENERATE(true, false);
  const bool has_gone = GENERATE(true, false);
  WithSuccessors rig(2, {"a", "b", "s", "t"});
  CHECK(rig.why_not_drain("a", "a").empty());
  if (by_signal)
    rig.say(rig.ids[1], Leave{SIGTERM});
  else
    CHECK(rig.drain("b", false).empty());
  if (has_gone) rig.say(rig.ids[1], Ended{0});
  CHECK_FALSE(rig.why_not_drain("a", "a").empty());
  CHECK_FALSE(rig.hand_over("a"));
  rig.obey();
  CHECK_FALSE(rig.resigned());
  rig.pass(5s);
  CHECK(rig.why_not_drain("a", "a").empty());  // s is in the next round
  CHECK(rig.hand_over("a"));
}

TEST_CASE("a handover ends the job if the last other node with a vote leaves, too", "[takeover]") {
  WithSuccessors rig(2, {"a", "b", "s", "t", "u"});
  REQUIRE(rig.hand_over("a"));
  rig.say(rig.ids[1], Leave{SIGTERM});
  rig.obey();
  rig.pass(1s);
  REQUIRE(rig.ended());
  CHECK(rig.ended()->user_signal == SIGTERM);
}

TEST_CASE("no node that runs leaves once ranks have finished, which would run again", "[coordinator]") {
  WithSuccessors rig(2, {"a", "b", "s"});
  rig.say(rig.ids[0], Succeeded{0});
  CHECK(rig.drain("b", true) == "without node 'b' ranks that have finished would run again");
  CHECK(rig.why_not_drain("a", "a") == "without node 'a' ranks that have finished would run again");
  CHECK_FALSE(rig.hand_over("a"));
  CHECK(rig.count<Stop>(rig.ids[1]) == 0);
  rig.say(rig.ids[1], Leave{SIGTERM});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->user_signal == SIGTERM);
}

TEST_CASE("a node that has finished may leave", "[coordinator]") {
  WithSuccessors rig(2, {"a", "b", "s"});
  rig.say(rig.ids[1], Succeeded{0});
  CHECK(rig.drain("b", false).empty());
  CHECK(rig.last<End>(rig.ids[1]).exit_code == 0);
  rig.say(rig.ids[0], Succeeded{0});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 0);
}

}  // namespace
}  // namespace ddprun::launcher
