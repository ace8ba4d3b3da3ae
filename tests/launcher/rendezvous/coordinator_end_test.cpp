#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// Losses, signals and the end, in jobs of a fixed number of nodes.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::failed;
using test::job;
using test::TwoNodes;

const std::string kHint = " (with --spares or --nnodes=MIN:MAX a job survives the loss of a node)";

TEST_CASE("a lost node ends a job of fixed nodes with 125", "[coordinator]") {
  TwoNodes rig;
  rig.lose(rig.b);
  CHECK(rig.last<End>(rig.a) == End{125, "node b (10.0.0.2) was lost: the connection ended" + kHint});
}

TEST_CASE("a lost node costs a job of fixed nodes one restart, which waits for another", "[coordinator]") {
  TwoNodes rig(1);
  rig.lose(rig.b);
  CHECK_THAT(rig.last<Stop>(rig.a).reason,
             ContainsSubstring("was lost") && ContainsSubstring("restart 1 of 1"));
  rig.obey();
  CHECK(rig.last<Waiting>(rig.a).present == 1);
  rig.pass(300s);
  const auto c = rig.join("c");
  rig.obey();
  CHECK(rig.last<Start>(c).number == 1);
  rig.lose(c);
  CHECK(rig.last<End>(rig.a).exit_code == 125);
}

TEST_CASE("a silent node is lost after the node timeout", "[coordinator]") {
  TwoNodes rig;
  rig.pass(1000s);
  CHECK_FALSE(rig.ended());
  rig.silent = {rig.b};
  rig.pass(9'999ms);
  CHECK_FALSE(rig.ended());
  rig.pass(2'501ms);  // a quarter of the timeout later at most
  CHECK(rig.last<End>(rig.a) == End{125, "node b (10.0.0.2) was lost: no sign of life for 10 s" + kHint});
  CHECK(rig.last<Refused>(rig.b).reason == "node b (10.0.0.2) was dropped: no sign of life for 10 s");
  CHECK(rig.count<End>(rig.b) == 0);
}

TEST_CASE("many silent nodes are lost at once", "[coordinator]") {
  CoordinatorRig rig(job(1, 4));
  const auto a = rig.join("a");
  for (const char* name : {"b", "c", "d"}) rig.silent.insert(rig.join(name));
  rig.pass(13s);
  CHECK(rig.last<Lead>(a).round == 1);  // the first round was given up once, and not once for each
  rig.obey();
  CHECK(rig.last<Start>(a).world_size == 1);
}

TEST_CASE("each silent node gets one final message", "[coordinator]") {
  CoordinatorRig rig(job(3, 3));
  const auto ids = rig.form({"a", "b", "c"});
  rig.silent = {ids[1], ids[2]};
  rig.pass(13s);
  for (const auto id : ids) CHECK(rig.count<Refused>(id) + rig.count<End>(id) == 1);
}

TEST_CASE("a coordinator that has slept blames no node for its silence", "[coordinator]") {
  TwoNodes rig;
  rig.pass(60s);
  rig.sleep(3600s);
  CHECK_FALSE(rig.ended());
  rig.pass(60s);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("a short node timeout does not keep the coordinator busy", "[coordinator]") {
  auto settings = job(2, 2);
  settings.node_timeout = 2ms;
  const auto now = Coordinator::Time();
  Coordinator coordinator(settings, now);
  coordinator.tick(now);
  CHECK(coordinator.next_tick() == now + 500us);
}

TEST_CASE("the user's signal on one node ends a job of fixed nodes, and their workers with it",
          "[coordinator]") {
  TwoNodes rig(3);
  rig.say(rig.b, Leave{SIGINT});
  for (const auto id : rig.ids)
    CHECK(rig.last<End>(id) == End{130, "node b (10.0.0.2) received SIGINT", false, SIGINT});
}

TEST_CASE("the user's signal ends a job of fixed nodes also between two rounds", "[coordinator]") {
  auto settings = job(2, 2, 3);
  settings.restarts.backoff = 10s;
  TwoNodes rig(settings);
  rig.say(rig.a, failed(7));
  rig.obey();
  rig.say(rig.b, Leave{SIGTERM});
  CHECK(rig.last<End>(rig.a).exit_code == 143);
}

TEST_CASE("a node that leaves before the first round is replaced", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  const auto a = rig.join("a");
  rig.say(a, Leave{SIGINT});
  rig.say(a, rig.wish("a"));  // nothing more of this connection
  CHECK_FALSE(rig.ended());
  CHECK(rig.messages_to(a) == 1);
  const auto ids = rig.form({"b", "c"});
  CHECK(rig.last<Start>(ids[0]).world_size == 2);
}

TEST_CASE("a node that ends its workers unasked is lost", "[coordinator]") {
  TwoNodes rig;
  rig.say(rig.b, Ended{0});
  CHECK(rig.last<Refused>(rig.b).reason == "node b (10.0.0.2) was dropped: it ended its workers unasked");
  CHECK(rig.last<End>(rig.a) == End{125, "node b (10.0.0.2) was lost: it ended its workers unasked" + kHint});
}

TEST_CASE("the coordinator's own node can end the job in every phase", "[coordinator]") {
  for (int phase = 0; phase < 4; ++phase) {
    CoordinatorRig rig(job(2, 2, 3));
    const auto a = rig.join("a");
    const auto b = phase > 0 ? rig.join("b") : a;
    if (phase > 1) rig.obey();
    if (phase > 2) rig.say(a, failed(7));
    rig.end(130, "SIGINT");
    rig.end(1, "again");
    CHECK(rig.last<End>(b) == End{130, "SIGINT"});
    CHECK(rig.count<End>(a) == 1);
  }
}

TEST_CASE("nothing follows the end of the job", "[coordinator]") {
  for (const bool running : {false, true}) {
    CoordinatorRig rig(job(2, 2, 3));
    const auto a = rig.join("a"), b = rig.join("b");
    if (running) rig.say(a, Leading{0, 1234});
    rig.end(130, "SIGINT");
    const auto to_a = rig.messages_to(a), to_b = rig.messages_to(b);
    rig.say(a, Leading{0, 1234});
    rig.say(b, failed(7));
    rig.say(b, Succeeded{0});
    rig.say(b, Ended{0});
    rig.say(b, Leave{SIGINT});
    rig.pass(1000s);
    rig.lose(a);
    CHECK(rig.messages_to(a) == to_a);
    CHECK(rig.messages_to(b) == to_b);
    CHECK(rig.ended()->exit_code == 130);
  }
}

TEST_CASE("a node that joins after the end is told once", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  rig.end(7, "rank 0 failed");
  const auto id = rig.join("late");
  rig.say(id, rig.wish("late"));
  CHECK(rig.messages_to(id) == 1);
  CHECK(rig.last<End>(id) == End{7, "rank 0 failed"});
}

}  // namespace
}  // namespace ddprun::launcher
