#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// Nodes that come and go.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::failed;
using test::job;
using test::TwoNodes;

/// Two nodes of two to three that have begun.
std::vector<CoordinatorRig::Id> form_two(CoordinatorRig& rig) {
  const std::vector<CoordinatorRig::Id> ids = {rig.join("a"), rig.join("b")};
  rig.pass(30s);
  rig.obey();
  REQUIRE(rig.round_of(ids[1]) == 0);
  return ids;
}

TEST_CASE("a late joiner restarts the round at no cost", "[elastic]") {
  CoordinatorRig rig(job(2, 3, 1));
  const auto ids = form_two(rig);
  const auto c = rig.join("c");
  CHECK_FALSE(rig.last<Waiting>(c).spare);
  CHECK(rig.last<Stop>(ids[0]) == Stop{0, "1 node joins"});
  CHECK(rig.count<Stop>(c) == 0);
  rig.obey();
  for (const auto id : {ids[0], ids[1], c}) CHECK(rig.last<Start>(id).world_size == 3);
  rig.say(c, failed(7, 1));
  CHECK(rig.last<Stop>(c).reason == "rank 0 failed; restart 1 of 1");
}

TEST_CASE("a joiner while the leader looks for a port restarts the round as soon as it runs", "[elastic]") {
  CoordinatorRig rig(job(2, 3));
  const auto a = rig.join("a");
  rig.join("b");
  rig.pass(30s);
  const auto c = rig.join("c");
  rig.obey();
  CHECK(rig.last<Start>(a).world_size == 3);
  CHECK(rig.last<Start>(c).number == 1);
}

TEST_CASE("joiners during a restart are taken along", "[elastic]") {
  auto settings = job(1, 3, 1);
  settings.restarts.backoff = 10s;
  CoordinatorRig rig(settings);
  const auto a = rig.join("a");
  rig.pass(30s);
  rig.obey();
  rig.say(a, failed(7, 0));
  const auto b = rig.join("b");  // while it stops
  rig.obey();
  const auto c = rig.join("c");  // in the pause
  rig.pass(9'999ms);
  CHECK(rig.count<Lead>(a) == 1);
  rig.pass(1ms);
  rig.obey();
  for (const auto id : {a, b, c}) CHECK(rig.last<Start>(id).world_size == 3);
}

TEST_CASE("a node above MAX is a spare and fills in for a lost one", "[elastic]") {
  CoordinatorRig rig(job(2, 3));
  const auto ids = rig.form({"a", "b", "c"});
  const auto d = rig.join("d");
  CHECK(rig.last<Waiting>(d).spare);
  rig.pass(1000s);
  CHECK(rig.count<Stop>(ids[0]) == 0);
  rig.lose(ids[1]);
  rig.obey();
  CHECK(rig.last<Start>(ids[2]) == test::start(1, 1, 3, 1, 3, "10.0.0.1", 2001, 0));
  CHECK(rig.last<Start>(d).group_rank == 2);
}

TEST_CASE("a full job of fixed size refuses other nodes", "[elastic]") {
  auto settings = job(2, 2, 1);
  settings.program = "train.py --lr 1";
  TwoNodes rig(settings);
  const std::string full =
      "the job 'job', which runs 'train.py --lr 1', has all 2 nodes: a (10.0.0.1), b (10.0.0.2)";
  CHECK(rig.last<Refused>(rig.join("c")).reason == "node c (10.0.0.3) comes too late: " + full);
  rig.say(rig.a, Succeeded{0});
  rig.lose(rig.a);  // it is done, and not missed
  CHECK_THAT(rig.last<Refused>(rig.join("d")).reason, ContainsSubstring("comes too late: the job 'job'"));
  rig.say(rig.b, failed(7));  // now the one that has gone is missed
  rig.obey();
  const auto e = rig.join("e");
  rig.obey();
  CHECK(rig.last<Start>(e).number == 1);
}

TEST_CASE("a spare may go", "[elastic]") {
  CoordinatorRig rig(job(1, 2, 1));
  const auto ids = rig.form({"a", "b"});
  rig.say(rig.join("c"), Leave{SIGINT});
  CHECK(rig.round_of(ids[0]) == 0);
}

TEST_CASE("a node that stood by ends with the job's success, one that comes after the end does not",
          "[elastic]") {
  CoordinatorRig rig(job(1, 2));
  const auto ids = rig.form({"a", "b"});
  const auto spare = rig.join("c");
  for (const auto id : ids) rig.say(id, Succeeded{0});
  const std::string unused = "the job 'job' ended without this node: all workers succeeded";
  CHECK(rig.last<End>(ids[0]) == End{0, "all workers succeeded"});
  CHECK(rig.last<End>(spare) == End{0, unused});
  CHECK(rig.last<End>(rig.join("late")) == End{125, unused});
  CHECK(rig.ended()->exit_code == 0);
}

TEST_CASE("late joiners wait for each other, and restart the job once", "[elastic]") {
  CoordinatorRig rig(job(1, 5));
  const auto a = rig.join("a");
  rig.pass(30s);
  rig.obey();
  const auto b = rig.join("b");
  rig.pass(20s);
  const auto c = rig.join("c");
  rig.pass(9'999ms);
  CHECK(rig.count<Stop>(a) == 0);
  rig.pass(1ms);
  CHECK(rig.last<Stop>(a).reason == "2 nodes join");
  rig.obey();
  for (const auto id : {a, b, c}) CHECK(rig.last<Start>(id).world_size == 3);
  rig.lose(rig.join("d"));
  rig.pass(29s);
  const auto e = rig.join("e");  // has its own last call
  rig.pass(29'999ms);
  CHECK(rig.count<Stop>(a) == 1);
  rig.join("f");  // and now the job is full
  rig.obey();
  CHECK(rig.last<Start>(e).world_size == 5);
}

TEST_CASE("a node that comes and dies again and again is refused", "[elastic]") {
  CoordinatorRig rig(job(1, 2));
  const auto a = rig.form({"a", "other"}).front();
  rig.lose(2);
  Join b = rig.wish("b");
  b.address = "10.0.0.9";
  for (const auto lived : {1s, 300s, 299s, 1s, 1s, 1s}) {  // 300 s: counting starts over
    rig.obey();
    const auto id = rig.join(b);
    rig.obey();
    CHECK(rig.round_of(id) > 0);
    rig.pass(lived);
    rig.lose(id);
  }
  CHECK(rig.last<Refused>(rig.join(b)).reason ==
        "node b (10.0.0.9) was lost 5 times soon after it had joined");
  rig.obey();
  rig.join("b");  // of another host
  rig.obey();
  CHECK(rig.last<Start>(a).world_size == 2);
}

TEST_CASE("nodes that come and go do not count as failures", "[elastic]") {
  CoordinatorRig rig(job(1, 2, 3));
  const auto ids = rig.form({"a", "b"});
  rig.lose(ids[1]);
  rig.obey();
  CHECK(rig.last<Start>(ids[0]).number == 1);
  CHECK(rig.last<Start>(ids[0]).restart_count == 0);
  rig.say(ids[0], failed(7, 1));
  rig.obey();
  CHECK(rig.last<Start>(ids[0]).restart_count == 1);
}

TEST_CASE("ranks of a role count within the role", "[elastic]") {
  CoordinatorRig rig(job(3, 3));
  std::vector<CoordinatorRig::Id> ids;
  for (const char* role : {"actor", "learner", "actor"}) {
    Join join = rig.wish("n" + std::to_string(ids.size()), 2);
    join.role = role;
    ids.push_back(rig.join(join));
  }
  rig.obey();
  const int first_ranks[] = {0, 0, 2}, sizes[] = {4, 2, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(rig.last<Start>(ids[i]).first_role_rank == first_ranks[i]);
    CHECK(rig.last<Start>(ids[i]).role_world_size == sizes[i]);
  }
}

TEST_CASE("members of the last round come first, then spares in order of arrival", "[elastic]") {
  CoordinatorRig rig(job(1, 2));
  const auto ids = rig.form({"c", "d"});
  const auto b = rig.join("b"), a = rig.join("a");
  rig.lose(ids[0]);
  rig.obey();
  CHECK(rig.last<Start>(b).group_rank == 0);
  CHECK(rig.last<Start>(ids[1]).group_rank == 1);
  CHECK(rig.count<Start>(a) == 0);
}

TEST_CASE("a joiner without a place in the next round is told it is a spare", "[elastic]") {
  CoordinatorRig rig(job(2, 3));
  form_two(rig);
  const auto c = rig.join("c"), d = rig.join("d");
  CHECK_FALSE(rig.last<Waiting>(d).spare);
  rig.obey();
  CHECK(rig.last<Start>(c).world_size == 3);
  CHECK(rig.last<Waiting>(d).spare);
}

TEST_CASE("nobody is restarted for a joiner once a node has succeeded", "[elastic]") {
  CoordinatorRig rig(job(2, 3));
  const auto ids = form_two(rig);
  rig.say(ids[0], Succeeded{0});
  const auto c = rig.join("c");
  CHECK(rig.count<Stop>(ids[1]) == 0);
  rig.say(ids[1], Succeeded{0});
  CHECK(rig.last<End>(ids[1]).exit_code == 0);
  CHECK(rig.last<End>(c).exit_code == 0);
}

TEST_CASE("the survivors of a lost node go on at once and at no cost", "[elastic]") {
  CoordinatorRig rig(job(1, 3, 1));
  const auto ids = rig.form({"a", "b", "c"});
  rig.lose(ids[0]);
  CHECK(rig.last<Stop>(ids[1]).reason == "node a (10.0.0.1) was lost: the connection ended");
  rig.obey();
  CHECK(rig.last<Start>(ids[1]) == test::start(1, 0, 2, 0, 2, "10.0.0.2", 2001, 1));
  rig.lose(ids[1]);
  rig.obey();
  CHECK(rig.last<Start>(ids[2]).world_size == 1);
  rig.say(ids[2], failed(7, 2));
  CHECK(rig.last<Stop>(ids[2]).reason == "rank 0 failed; restart 1 of 1");
}

TEST_CASE("a node that is lost while it stops is not waited for", "[elastic]") {
  CoordinatorRig rig(job(1, 3, 1));
  const auto ids = rig.form({"a", "b", "c"});
  rig.say(ids[0], failed(7, 0));
  rig.say(ids[0], Ended{0});
  rig.say(ids[1], Ended{0});
  rig.lose(ids[2]);
  rig.obey();
  CHECK(rig.last<Start>(ids[0]).world_size == 2);
}

TEST_CASE("survivors below MIN wait for joiners, until the join timeout", "[elastic]") {
  for (const bool joined : {true, false}) {
    CoordinatorRig rig(job(2, 3));
    const auto ids = form_two(rig);
    rig.lose(ids[0]);
    rig.obey();
    CHECK(rig.last<Waiting>(ids[1]).present == 1);
    rig.pass(599'999ms);
    CHECK_FALSE(rig.ended());
    if (joined) {
      const auto c = rig.join("c");
      rig.obey();
      CHECK(rig.last<Start>(c).world_size == 2);
    } else {
      rig.pass(1ms);
      CHECK_THAT(rig.last<End>(ids[1]).reason,
                 ContainsSubstring("only 1 of at least 2 nodes joined within 600 s (--join-timeout): b"));
      CHECK(rig.last<End>(ids[1]).exit_code == 125);
    }
  }
}

TEST_CASE("the others go on when the user ends a node", "[elastic]") {
  CoordinatorRig rig(job(1, 3));
  const auto ids = rig.form({"a", "b", "c"});
  rig.say(ids[2], Leave{SIGTERM});
  CHECK(rig.last<Stop>(ids[0]) == Stop{0, "node c (10.0.0.3) received SIGTERM", false, {}, SIGTERM, 1});
  rig.obey();
  CHECK(rig.round_of(ids[0]) == -1);  // its workers may still save
  rig.lose(ids[2]);
  rig.obey();
  CHECK(rig.last<Start>(ids[0]).world_size == 2);
  CHECK(rig.round_of(ids[2]) == 0);  // nothing was said to it
  CHECK(rig.round_of(ids[0]) == 1);
}

TEST_CASE("a lost member before the round runs costs nothing and waits for nobody", "[elastic]") {
  CoordinatorRig rig(job(1, 3));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.join("c");
  rig.lose(b);
  CHECK(rig.last<Lead>(a).round == 1);
  CHECK(rig.count<Stop>(a) == 0);
  rig.obey();
  CHECK(rig.last<Start>(a).world_size == 2);
}

TEST_CASE("finished nodes run again after another one is lost", "[elastic]") {
  CoordinatorRig rig(job(1, 3));
  const auto ids = rig.form({"a", "b", "c"});
  rig.say(ids[0], Succeeded{0});
  rig.lose(ids[1]);
  rig.obey();
  CHECK(rig.last<Start>(ids[0]).world_size == 2);
  CHECK(rig.last<Start>(ids[2]).world_size == 2);
}

TEST_CASE("a lost node that comes back takes part again", "[elastic]") {
  CoordinatorRig rig(job(1, 2));
  const auto ids = rig.form({"a", "b"});
  rig.lose(ids[0]);
  rig.obey();
  const auto again = rig.join("a");
  rig.obey();
  CHECK(rig.last<Start>(again).group_rank == 0);
  CHECK(rig.last<Start>(ids[1]).group_rank == 1);
}

}  // namespace
}  // namespace ddprun::launcher
