#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// A node that is to leave the job (ddpctl drain), and the others that go on.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::failed;
using test::job;
using test::TwoNodes;

CoordinatorSettings with_spare(bool in_place, int spares = 1) {
  auto settings = job(2, 2);
  settings.spares = spares;
  settings.in_place = in_place;
  return settings;
}

/// Whom it asks does not matter.
DrainAnswer drain(CoordinatorRig& rig, const std::string& node, CoordinatorRig::Id asker = 1) {
  rig.say(asker, Drain{7, node});
  const auto answer = rig.last<DrainAnswer>(asker);
  CHECK(answer.request == 7);
  return answer;
}

/// The drained node has ended its workers.
void leave(CoordinatorRig& rig, CoordinatorRig::Id id) {
  rig.say(id, Ended{rig.last<Drained>(id).round, {}, /*drained=*/true});
}

void refused(CoordinatorRig& rig, const std::string& node, const std::string& why) {
  const auto messages = [&] {
    std::size_t all = 0;
    for (CoordinatorRig::Id id = 1; id < 9; ++id) all += rig.messages_to(id);
    return all;
  };
  const auto before = messages();
  const auto answer = drain(rig, node);
  CHECK_FALSE(answer.accepted);
  CHECK_THAT(answer.text, ContainsSubstring(why));
  CHECK(messages() == before + 1);  // nobody else is told anything
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a spare takes a drained node's ranks in place, and it leaves once that has begun", "[drain]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  const bool first = GENERATE(false, true);  // the node of rank 0
  const auto leaving = first ? rig.a : rig.b, other = first ? rig.b : rig.a;
  const std::string name = first ? "a (10.0.0.1)" : "b (10.0.0.2)";
  const auto answer = drain(rig, first ? "0" : "b", spare);
  CHECK(answer.accepted);
  CHECK(answer.text == "node " + name +
                           " is drained; node c (10.0.0.3) takes its ranks, and the other workers go on if "
                           "their program can");
  rig.obey();
  CHECK(rig.last<Start>(spare).in_place);
  CHECK(rig.last<Start>(spare).group_rank == (first ? 0 : 1));
  CHECK(rig.last<Start>(other).number == 1);
  CHECK(rig.last<Start>(other).restart_count == 0);
  CHECK(rig.count<Stop>(other) == 0);
  CHECK(rig.count<Start>(leaving) == 1);
  CHECK(rig.count<Drained>(leaving) == 0);  // it could still keep its ranks
  for (const auto id : {other, spare}) rig.say(id, rig.beat_of(id));
  CHECK(rig.last<Drained>(leaving).replaced);
  leave(rig, leaving);
  rig.lose(leaving);
  rig.say(other, Succeeded{1});
  rig.say(spare, Succeeded{1});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 0);
  CHECK(rig.count<End>(leaving) == 0);
}

TEST_CASE("without a round in place all workers save, and the next round is without the drained node",
          "[drain]") {
  const bool spare = GENERATE(true, false);
  auto settings = spare ? with_spare(false) : job(1, 2);
  TwoNodes rig(settings);
  const auto other = spare ? rig.join("c") : rig.a;
  const auto answer = drain(rig, "b");
  CHECK(answer.text == std::string("node b (10.0.0.2) is drained; all workers get SIGTERM, and restart ") +
                           (spare ? "with node c (10.0.0.3) in its place" : "without it, on 1 node"));
  CHECK_FALSE(rig.last<Drained>(rig.b).replaced);
  CHECK(rig.count<Stop>(rig.b) == 0);
  rig.obey();
  CHECK(rig.count<Start>(rig.a) == 1);  // the drained node's workers still save
  leave(rig, rig.b);
  rig.obey();
  CHECK(rig.last<Start>(other).number == 1);
  CHECK(rig.last<Start>(other).restarts_used == 0);
  CHECK(rig.last<Start>(other).group_world_size == (spare ? 2 : 1));
  CHECK(rig.count<Start>(rig.b) == 1);
}

TEST_CASE("what cannot be drained is refused in one line, and nothing changes", "[drain]") {
  SECTION("an unknown or lost node") {
    TwoNodes rig(job(1, 3));
    const auto c = rig.join("c");
    rig.lose(c);
    refused(rig, "c", "the job has no node 'c': a (10.0.0.1), b (10.0.0.2)");
    refused(rig, "2", "the job has no node '2'");
    refused(rig, "", "the job has no node ''");
    refused(rig, "\x1b[2J", "the job has no node '");
  }
  SECTION("too few would be left") {
    TwoNodes rig(GENERATE(0, 3));
    refused(rig, "b",
            "without node b (10.0.0.2) the job would have 1 of at least 2 nodes, and there is no spare");
    rig.say(rig.a, Succeeded{0});
    rig.say(rig.b, Succeeded{0});
    CHECK(rig.ended()->exit_code == 0);
  }
  SECTION("the coordinator's node") {
    auto settings = job(1, 2);
    settings.own_id = "id of a";
    settings.has_successors = GENERATE(true, false);
    CoordinatorRig rig(settings);
    Join own = rig.wish("a");
    own.id = settings.own_id;
    rig.join(own);
    rig.join("b");
    rig.obey();
    refused(rig, "a",
            std::string("node a (10.0.0.1) has the coordinator and cannot be drained: ") +
                (settings.has_successors ? "send SIGTERM to its ddprun" : "end the job with ddpctl stop"));
  }
  SECTION("two nodes of one name") {
    CoordinatorRig rig(job(1, 2));
    rig.form({"a", "a"});
    refused(rig, "a", "2 nodes of the job are called 'a': expected a node rank");
    CHECK(drain(rig, "1").accepted);
  }
  SECTION("a job that has not begun") {
    CoordinatorRig rig(job(2, 3));
    rig.join("a");
    refused(rig, "a", "still waiting for its nodes");
  }
  SECTION("a job that is about to end") {
    TwoNodes rig(job(1, 2));
    rig.say(rig.a, Succeeded{0});
    refused(rig, "b", "about to end");
  }
  SECTION("etcd is away") {
    auto settings = job(1, 2);
    settings.elected = true;
    CoordinatorRig rig(settings);
    rig.form({"a", "b"});
    rig.recorded(0);
    rig.set_reaches_etcd(false);
    refused(rig, "b", "etcd does not answer");
    rig.set_reaches_etcd(true);
    CHECK(drain(rig, "b").accepted);
  }
}

TEST_CASE("one node is drained at a time", "[drain]") {
  const bool in_place = GENERATE(true, false);
  TwoNodes rig(with_spare(in_place, 2));
  rig.join("c");
  const auto last = rig.join("d");
  CHECK(drain(rig, "b").accepted);
  const auto leads = rig.count<Lead>(rig.a);
  const auto again = drain(rig, "b");
  CHECK(again.accepted);
  CHECK(again.text == "node b (10.0.0.2) is already leaving the job");
  CHECK(rig.count<Lead>(rig.a) == leads);
  refused(rig, "d", "node b (10.0.0.2) is already leaving the job; try again when it has left");
  rig.obey();
  CHECK_THAT(drain(rig, "b").text, ContainsSubstring("already leaving"));
  if (in_place)
    for (const auto id : {1U, 3U}) rig.say(id, rig.beat_of(id));
  leave(rig, rig.b);
  rig.obey();
  refused(rig, "b", "the job has no node 'b'");
  CHECK(rig.count<Drained>(rig.b) == 1);
  const auto answer = drain(rig, "d");
  CHECK(answer.text == "node d (10.0.0.4) leaves the job; it was standing by");
  leave(rig, last);
  CHECK(rig.round_of(rig.a) == 1);
  CHECK(rig.round_of(3) == 1);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a spare that is lost as it takes over is replaced, by the drained node itself if need be",
          "[drain]") {
  const int spares = GENERATE(1, 2);
  const bool begun = GENERATE(false, true);
  TwoNodes rig(with_spare(true, spares));
  const auto spare = rig.join("c");
  const auto next = spares == 2 ? rig.join("d") : rig.b;
  CHECK(drain(rig, "b").accepted);
  if (begun) rig.obey();
  rig.lose(spare);
  rig.obey();
  const auto start = rig.last<Start>(next);
  CHECK(start.in_place);
  CHECK(start.group_rank == 1);
  CHECK(start.number == 2);
  CHECK(start.restarts_used == 0);
  if (spares == 1)
    CHECK(start.reason ==
          "node c (10.0.0.3) was lost: the connection ended; node b (10.0.0.2) keeps its ranks");
  CHECK(rig.count<Stop>(rig.a) == 0);
  CHECK(rig.count<Drained>(rig.b) == 0);
  for (const auto id : {rig.a, next}) rig.say(id, rig.beat_of(id));
  CHECK(rig.count<Drained>(rig.b) == (spares == 2 ? 1 : 0));
  if (spares == 1) refused(rig, "b", "there is no spare");  // it could be drained again
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a drained node stays if another is lost as the spare takes over, and it is needed", "[drain]") {
  auto settings = job(GENERATE(3, 2), 3);  // also elastic, where two would be enough
  settings.spares = 1;
  settings.in_place = true;
  const bool needed = settings.min_nodes == 3;
  CoordinatorRig rig(settings);
  rig.form({"a", "b", "c"});
  if (!needed) rig.pass(settings.last_call);
  rig.obey();
  rig.say(1, rig.beat_of(1));
  const auto spare = rig.join("d");
  CHECK(drain(rig, "b").accepted);
  const bool begun = GENERATE(false, true);
  if (begun) rig.obey();
  rig.lose(3);
  CHECK(rig.count<Drained>(2) == (needed ? 0 : 1));
  if (!needed) leave(rig, 2);
  for (const auto id : {CoordinatorRig::Id(1), spare}) {
    const auto reason = rig.last<Stop>(id).reason;
    CHECK_THAT(reason, ContainsSubstring("node c (10.0.0.3) was lost"));
    if (needed) CHECK_THAT(reason, ContainsSubstring("; node b (10.0.0.2) stays in the job"));
  }
  rig.obey();
  REQUIRE_FALSE(rig.ended());
  CHECK(rig.last<Start>(spare).group_world_size == (needed ? 3 : 2));
  CHECK(rig.last<Start>(spare).restarts_used == 0);
  CHECK_FALSE(rig.last<Start>(spare).in_place);
  CHECK(rig.count<Start>(2) == (needed ? 2 : 1));
  if (needed) refused(rig, "b", "there is no spare");  // it could be drained again
}

TEST_CASE("a spare that its user ends as it takes over is replaced, and the job goes on", "[drain]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  drain(rig, "b");
  if (GENERATE(true, false)) rig.obey();
  rig.say(spare, Leave{SIGTERM});
  rig.obey();
  REQUIRE_FALSE(rig.ended());
  CHECK_THAT(rig.last<Start>(rig.b).reason,
             ContainsSubstring("node c (10.0.0.3) received SIGTERM; node b (10.0.0.2) keeps its ranks"));
}

TEST_CASE("what speaks against a drain may pass, if there is another spare", "[drain]") {
  const int spares = GENERATE(1, 2);
  auto settings = job(3, 3);
  settings.in_place = true;
  settings.spares = spares;
  CoordinatorRig rig(settings);
  rig.form({"a", "b", "c"});
  for (int i = 0; i < spares; ++i) rig.join(i == 0 ? "d" : "e");
  CHECK(drain(rig, "b").accepted);
  const auto answer = drain(rig, "c");
  CHECK_FALSE(answer.accepted);
  CHECK(answer.passes == (spares == 2));
}

TEST_CASE("a spare may join while a drained node's workers save", "[drain]") {
  TwoNodes rig(with_spare(GENERATE(true, false)));
  const auto spare = rig.join("c");
  drain(rig, "b");
  rig.obey();
  CHECK(rig.count<Refused>(rig.join("d")) == 0);
  CHECK(rig.count<Refused>(rig.join("e")) == 1);
  CHECK(rig.count<Refused>(spare) == 0);
}

TEST_CASE("a drained node keeps its ranks if a rank of the only other node is lost", "[drain]") {
  auto settings = with_spare(true, 2);
  settings.restarts.max_restarts = 1;
  TwoNodes rig(settings);
  const auto spare = rig.join("c"), next = rig.join("d");
  for (const auto id : rig.ids) rig.say(id, rig.beat_of(id));
  CHECK(drain(rig, "b").accepted);
  const bool begun = GENERATE(false, true);
  if (begun) rig.obey();
  Failed lost = failed(9);
  lost.round = begun ? 1 : 0;
  lost.in_place = true;
  lost.alone = true;
  rig.say(rig.a, lost);
  refused(rig, "b", "only the workers of node b (10.0.0.2) have the training's state");
  rig.obey();
  CHECK(rig.count<Refused>(spare) == 1);
  const auto start = rig.last<Start>(rig.b);
  CHECK(start.in_place);
  CHECK(start.group_rank == 1);
  CHECK(start.restarts_used == (begun ? 1 : 0));  // a round in place was to begin anyway
  CHECK_THAT(start.reason, ContainsSubstring(lost.text + "; node b (10.0.0.2) keeps its ranks"));
  CHECK(start.number == rig.last<Start>(rig.a).number);
  for (const auto id : rig.ids) rig.say(id, rig.beat_of(id));
  CHECK(rig.count<Drained>(rig.b) == 0);
  CHECK(rig.count<Start>(next) == 0);
  CHECK(drain(rig, "b").accepted);  // once more, with the other spare
  rig.obey();
  CHECK(rig.last<Start>(next).group_rank == 1);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a job whose workers succeed before the spare could take over has succeeded", "[drain]") {
  auto settings = with_spare(true);
  settings.elected = true;
  CoordinatorRig rig(settings);
  rig.form({"a", "b"});
  rig.recorded(0);
  const auto spare = rig.join("c");
  const bool first = GENERATE(false, true);  // the drained node succeeds first
  const CoordinatorRig::Id one = first ? 2 : 1, other = first ? 1 : 2;
  CHECK(drain(rig, "b").accepted);
  SECTION("etcd or the leader is silent") {
    if (GENERATE(true, false)) rig.obey();
    rig.say(one, Succeeded{0});
    rig.say(spare, Succeeded{0});  // it was in no round
    CHECK_FALSE(rig.ended());
    rig.say(other, Succeeded{0});
  }
  SECTION("the node was to keep its ranks") {
    rig.say(one, Succeeded{0});
    rig.lose(spare);
    CHECK_FALSE(rig.ended());
    rig.say(other, Succeeded{0});
  }
  SECTION("the round with the spare has just begun") {
    rig.obey();
    rig.recorded(1);
    rig.say(one, Succeeded{0});
    CHECK_FALSE(rig.ended());
    rig.say(other, Succeeded{other == 1 && GENERATE(true, false) ? 1 : 0});  // it may be in that round by now
  }
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 0);
  CHECK(rig.last<End>(2).exit_code == 0);
}

TEST_CASE("workers that succeed while another's rank is replaced do not end the job", "[drain]") {
  auto settings = with_spare(true);
  settings.restarts.max_restarts = 1;
  TwoNodes rig(settings);
  rig.say(rig.b,
          Failed{0, WorkerFailed{ExitStatus::killed(SIGKILL)}, "a rank was killed", /*in_place=*/true});
  rig.say(rig.a, Succeeded{0});
  rig.say(rig.b, Succeeded{0});  // nonsense
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a node's success before a round in place does not count in a drain after it", "[drain]") {
  auto settings = with_spare(true);
  settings.restarts.max_restarts = 1;
  TwoNodes rig(settings);
  rig.join("c");
  rig.say(rig.b,
          Failed{0, WorkerFailed{ExitStatus::killed(SIGKILL)}, "a rank was killed", /*in_place=*/true});
  rig.say(rig.a, Succeeded{0});
  rig.obey();
  for (const auto id : {rig.a, rig.b}) rig.say(id, rig.beat_of(id));
  CHECK(drain(rig, "b").accepted);
  rig.say(rig.b, Succeeded{1});
  CHECK_FALSE(rig.ended());
}

TEST_CASE("the success of one node does not count for all if a node is drained whose workers never ran",
          "[drain]") {
  TwoNodes rig(with_spare(true, 2));
  const auto spare = rig.join("c"), other = rig.join("d");
  rig.say(rig.a, rig.beat_of(rig.a));
  SECTION("a spare that has just taken a lost node's ranks") {
    rig.lose(rig.b);
    CHECK(drain(rig, "c", other).accepted);
  }
  SECTION("a spare that stands by, while a drained node is to keep its ranks") {
    CHECK(drain(rig, "b").accepted);
    rig.lose(spare);
    rig.lose(other);
    const auto late = rig.join("e");
    CHECK(drain(rig, "e", late).accepted);
  }
  rig.say(rig.a, Succeeded{0});
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a drained node's loss before it was told changes nothing", "[drain]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  drain(rig, "b");
  rig.lose(rig.b);
  rig.obey();
  CHECK(rig.last<Start>(spare).group_rank == 1);
  CHECK(rig.last<Start>(rig.a).number == 1);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a node is drained while a rank is being replaced", "[drain]") {
  auto settings = with_spare(true);
  settings.restarts.max_restarts = 1;
  TwoNodes rig(settings);
  const auto spare = rig.join("c");
  const auto loser = GENERATE(1U, 2U);
  for (const auto id : rig.ids) rig.say(id, rig.beat_of(id));
  rig.say(loser,
          Failed{0, WorkerFailed{ExitStatus::killed(SIGKILL)}, "a rank was killed", /*in_place=*/true});
  CHECK(drain(rig, "b").accepted);
  rig.obey();
  CHECK(rig.last<Start>(rig.a).number == 2);
  CHECK(rig.last<Start>(rig.a).in_place);
  CHECK(rig.last<Start>(spare).group_rank == 1);
  CHECK(rig.count<Stop>(rig.a) == 0);
  rig.say(rig.b, failed(7));  // its workers no longer matter
  for (const auto id : {rig.a, spare}) rig.say(id, rig.beat_of(id));
  leave(rig, rig.b);
  CHECK(rig.round_of(rig.a) == 2);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a drained node keeps its ranks until all workers are in the round with the spare", "[drain]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  CHECK(drain(rig, "b").accepted);
  rig.obey();
  REQUIRE(rig.last<Start>(spare).in_place);
  SECTION("the others' may yet decline") {
    rig.stuck = {rig.a};
    for (const auto id : {rig.a, spare}) rig.say(id, rig.beat_of(id));
    CHECK(rig.count<Drained>(rig.b) == 0);
    rig.stuck = {};
    rig.say(rig.a, rig.beat_of(rig.a));
    CHECK(rig.last<Drained>(rig.b).replaced);
  }
  SECTION("a spare whose workers fail does not get them") {
    rig.stuck = {spare};
    rig.say(spare, rig.beat_of(spare));
    const AttemptEnd end = GENERATE(AttemptEnd(StartFailed{127, "no such file"}),
                                    AttemptEnd(WorkerFailed{ExitStatus::exited(1)}));
    rig.say(spare, Failed{1, end, "its workers failed"});
    CHECK(rig.count<Refused>(spare) == 1);
    CHECK(rig.count<Drained>(rig.b) == 0);
    rig.obey();
    CHECK(rig.last<Start>(rig.b).number == 2);
    CHECK(rig.last<Start>(rig.b).in_place);
    CHECK_FALSE(rig.ended());
  }
}

const Drain kCannotStart{0, "", "train: the disk does not answer"};

TEST_CASE("two nodes whose workers cannot start leave one after the other", "[drain]") {
  auto settings = job(3, 3, 3);
  settings.spares = 2;
  settings.in_place = true;
  CoordinatorRig rig(settings);
  const auto ids = rig.form({"a", "b", "x"});
  for (const auto id : {1, 2, 3})
    rig.say(static_cast<CoordinatorRig::Id>(id), rig.beat_of(static_cast<CoordinatorRig::Id>(id)));
  const auto s1 = rig.join("s1"), s2 = rig.join("s2");
  rig.stuck = {2, 3};  // both have lost a worker, and wait for the disk in a round in place
  rig.say(2, Failed{0, WorkerFailed{ExitStatus::killed(9)}, "killed", /*in_place=*/true});
  rig.obey();
  rig.say(1, rig.beat_of(1));
  rig.say(2, kCannotStart);
  rig.obey();
  for (const auto id : {CoordinatorRig::Id{1}, s1}) rig.say(id, rig.beat_of(id));
  CHECK(rig.count<Drained>(2) == 0);  // the third one is not in the round
  rig.say(3, kCannotStart);
  CHECK(rig.last<Drained>(2).failed);
  leave(rig, 2);
  rig.say(3, kCannotStart);
  rig.obey();
  for (const auto id : {CoordinatorRig::Id{1}, s1, s2}) rig.say(id, rig.beat_of(id));
  CHECK(rig.last<Drained>(3).failed);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a spare that cannot start its workers stays if the node that it replaces cannot either",
          "[drain]") {
  auto settings = with_spare(true);
  settings.restarts.max_restarts = 1;
  TwoNodes rig(settings);
  const auto spare = rig.join("c");
  rig.stuck = {rig.b, spare};
  rig.say(rig.b, Failed{0, WorkerFailed{ExitStatus::killed(9)}, "killed", /*in_place=*/true});
  rig.obey();
  rig.say(rig.a, rig.beat_of(rig.a));
  rig.say(rig.b, kCannotStart);
  rig.obey();
  rig.say(rig.a, rig.beat_of(rig.a));
  rig.say(spare, kCannotStart);
  CHECK(rig.count<Drained>(spare) == 0);
  rig.say(rig.b, kCannotStart);
  CHECK(rig.count<Drained>(rig.b) == 0);
  CHECK(rig.round_of(spare) == 2);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a node is drained in the middle of a restart", "[drain]") {
  auto settings = job(1, 3, 1);
  settings.restarts.backoff = 2s;
  CoordinatorRig rig(settings);
  const auto ids = rig.form({"a", "b", "c"});
  rig.say(1, failed(7));
  const int when =
      GENERATE(0, 1, 2, 3);  // before it has ended its workers, after it, in the pause, in the lead
  if (when == 1) rig.say(2, Ended{0});
  if (when >= 2) rig.obey();
  if (when == 3) rig.pass(3s);
  CHECK(drain(rig, "b").accepted);
  CHECK(rig.count<Stop>(2) == 1);
  if (when == 0) {
    for (const auto id : {1U, 2U, 3U}) rig.say(id, Ended{0});
    rig.pass(3s);
    CHECK(rig.count<Lead>(1) == 1);  // it may not have heard yet that it leaves
  }
  leave(rig, 2);
  rig.obey();
  rig.pass(3s);
  rig.obey();
  CHECK(rig.last<Start>(1).group_world_size == 2);
  CHECK(rig.last<Start>(3).restarts_used == 1);
  CHECK(rig.count<Start>(2) == 1);
}

TEST_CASE("workers that cannot go on without a drained node's wait until those have saved", "[drain]") {
  TwoNodes rig(with_spare(true));
  const auto spare = rig.join("c");
  drain(rig, "b");
  rig.obey();
  rig.say(rig.a, Failed{1, EndedByPeers{}, "the workers cannot continue"});
  CHECK_FALSE(rig.last<Drained>(rig.b).replaced);
  rig.obey();
  CHECK(rig.count<Start>(rig.a) == 2);
  leave(rig, rig.b);
  rig.obey();
  CHECK(rig.last<Start>(rig.a).number == 2);
  CHECK_FALSE(rig.last<Start>(spare).in_place);
}

TEST_CASE("ddpctl stop ends the job while a node is being drained, on whichever node", "[drain]") {
  TwoNodes rig(job(1, 2));
  drain(rig, "b");
  rig.say(GENERATE(1U, 2U), Failed{0, SignalReceived{SIGTERM}, "ddpctl stop ends the job"});
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 128 + SIGTERM);
  CHECK(rig.ended()->user_signal == SIGTERM);
}

TEST_CASE("a drained node that connects again is told so, and its vote is not needed", "[drain]") {
  auto settings = job(1, 3);
  settings.has_successors = true;
  CoordinatorRig rig(settings);
  for (const char* name : {"a", "b", "c"}) {
    Join wish = rig.wish(name);
    wish.id = std::string("id of ") + name;
    rig.join(wish);
  }
  rig.obey();
  drain(rig, "b");
  if (GENERATE(true, false)) {
    rig.lose(2);  // before it was heard
    Join again = rig.wish("b");
    again.id = "id of b";
    CHECK(rig.count<Drained>(rig.join(again)) == 1);
    return;
  }
  SECTION("a handover waits until its workers have ended") {
    CHECK(rig.hand_over("id of a"));
    rig.obey();
    rig.pass(60s);
    CHECK_FALSE(rig.resigned());
    CHECK(rig.last<Stop>(3).hands_over);  // should this host be lost meanwhile
    leave(rig, 2);
    rig.lose(1);
    rig.pass(1s);
    CHECK(rig.resigned());
    CHECK(rig.last<Stop>(3).left == 1);
  }
  SECTION("a handover waits no longer for it once it is silent") {
    CHECK(rig.hand_over("id of a"));
    rig.obey();
    rig.silent = {2};
    rig.lose(1);
    rig.pass(15s);
    CHECK(rig.resigned());
    CHECK(rig.last<Stop>(3).left == 0);
  }
  SECTION("a handover that all others leave meanwhile ends the job without waiting for it") {
    CHECK(rig.hand_over("id of a"));
    rig.say(3, Leave{SIGTERM});
    rig.pass(3s);
    REQUIRE(rig.ended());
    CHECK(rig.ended()->exit_code == 128 + SIGTERM);
  }
  SECTION("nor is it one of those that could take the coordinator's place") {
    leave(rig, 2);
    rig.lose(3);
    rig.obey();
    CHECK_FALSE(rig.ended());
    CHECK(rig.last<Start>(1).group_world_size == 1);
  }
}

TEST_CASE("a drained node is not missed if the coordinator is lost while it saves", "[drain]") {
  auto settings = job(1, 3);
  settings.has_successors = true;
  CoordinatorRig rig(settings);
  const auto ids = rig.form({"a", "b", "c"});
  drain(rig, "b");
  CHECK(rig.last<Stop>(ids[2]).left == 0);  // it may not have heard it
  REQUIRE(rig.count<Drained>(ids[1]) == 1);
  rig.say(ids[1], Leave{SIGTERM});
  for (const auto id : {ids[0], ids[2]}) CHECK(rig.last<Stop>(id).left == 1);
  CHECK(rig.count<Stop>(ids[1]) == 0);
}

TEST_CASE("a drain that meets a handover, or the next coordinator before it has begun, may be asked again",
          "[drain]") {
  auto settings = job(1, 3);
  settings.has_successors = true;
  const bool is_next = GENERATE(false, true);
  if (is_next) settings.lost_at = CoordinatorRig(settings).now();
  CoordinatorRig rig(settings);
  Join own = rig.wish("a");
  own.id = "id of a";
  rig.join(own);
  if (!is_next) {
    rig.join("b");
    rig.join("c");
    rig.obey();
    REQUIRE(rig.hand_over("id of a"));
  }
  CHECK(drain(rig, is_next ? "a" : "b").passes);
}

TEST_CASE("no handover is begun for a drained node alone", "[drain]") {
  auto settings = job(1, 2);
  settings.has_successors = true;
  CoordinatorRig rig(settings);
  Join own = rig.wish("a");
  own.id = "id of a";
  rig.join(own);
  rig.join("b");
  rig.obey();
  drain(rig, "b");
  CHECK_FALSE(rig.hand_over("id of a"));
}

}  // namespace
}  // namespace ddprun::launcher
