#include "launcher/rendezvous/coordinator.h"

#include "tests/launcher/rendezvous/coordinator_rig.h"

// How a round is formed: when, and of whom in which order. Ends and restarts: coordinator_end_test.cpp,
// elastic jobs: coordinator_elastic_test.cpp, refused nodes: admission_test.cpp.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::CoordinatorRig;
using test::job;
using Ids = std::vector<CoordinatorRig::Id>;

/// Names in the order of their nodes' ranks.
std::vector<std::string> order(const CoordinatorRig& rig, const Ids& ids, const std::vector<Join>& wishes) {
  std::vector<std::string> names(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    names.at(static_cast<std::size_t>(rig.last<Start>(ids[i]).group_rank)) = wishes[i].node;
  return names;
}

std::vector<std::string> order(const std::vector<Join>& wishes) {
  const int n = static_cast<int>(wishes.size());
  CoordinatorRig rig(job(n, n));
  Ids ids;
  for (Join wish : wishes) {
    wish.min_nodes = wish.max_nodes = n;
    ids.push_back(rig.join(wish));
  }
  rig.obey();
  return order(rig, ids, wishes);
}

Join named(const std::string& name, std::optional<int> node_rank = {}) {
  Join join;
  join.node = name;
  join.node_rank = node_rank;
  return join;
}

TEST_CASE("a round begins as soon as MAX nodes have joined and their leader has a port", "[coordinator]") {
  CoordinatorRig rig(job(2, 2, 3));
  const auto a = rig.join("a");
  CHECK(rig.last<Waiting>(a) == Waiting{1, 2, 2, false, 10'000, 1000});
  CHECK(rig.count<Lead>(a) == 0);
  const auto b = rig.join("b");
  CHECK(rig.last<Waiting>(b).present == 2);
  CHECK(rig.last<Lead>(a).round == 0);
  CHECK(rig.count<Lead>(b) == 0);
  CHECK(rig.count<Start>(a) + rig.count<Start>(b) == 0);
  rig.say(a, Leading{0, 1234});
  CHECK(rig.last<Start>(a) == test::start(0, 0, 2, 0, 2, "10.0.0.1", 1234, 3));
  CHECK(rig.last<Start>(b) == test::start(0, 1, 2, 1, 2, "10.0.0.1", 1234, 3));
  CHECK_FALSE(rig.ended());
}

TEST_CASE("one node alone forms a round", "[coordinator]") {
  CoordinatorRig rig(job(1, 1));
  const auto id = rig.form({"a"}).front();
  CHECK(rig.last<Start>(id).world_size == 1);
}

TEST_CASE("only the leader's port of this round begins it", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.say(b, Leading{0, 1});
  rig.say(a, Leading{1, 2});
  CHECK(rig.count<Start>(a) == 0);
  rig.say(a, Leading{0, 3});
  rig.say(a, Leading{0, 4});
  CHECK(rig.count<Start>(b) == 1);
  CHECK(rig.last<Start>(b).master_port == 3);
}

TEST_CASE("with MIN nodes a round waits for the last call and not longer", "[coordinator]") {
  CoordinatorRig rig(job(2, 4));
  const auto a = rig.join("a");
  rig.pass(60s);
  const auto b = rig.join("b");
  rig.pass(20s);
  const auto c = rig.join("c");  // is taken along and buys no time
  rig.pass(9'999ms);
  CHECK(rig.count<Lead>(a) == 0);
  rig.pass(1ms);
  rig.obey();
  for (const auto id : {a, b, c}) CHECK(rig.last<Start>(id).group_world_size == 3);
}

TEST_CASE("the last call starts over if too few nodes are left in between", "[coordinator]") {
  CoordinatorRig rig(job(2, 3));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.pass(29s);
  rig.lose(b);
  rig.pass(10s);
  rig.join("c");
  rig.pass(29'999ms);
  CHECK(rig.count<Lead>(a) == 0);
  rig.pass(1ms);
  CHECK(rig.count<Lead>(a) == 1);
}

TEST_CASE("the last call ends with the join timeout", "[coordinator]") {
  auto settings = job(1, 2);
  settings.join_timeout = 5s;
  CoordinatorRig rig(settings);
  const auto a = rig.join("a");
  rig.pass(4'999ms);
  CHECK(rig.count<Lead>(a) == 0);
  rig.pass(1ms);
  rig.obey();
  CHECK(rig.last<Start>(a).world_size == 1);
}

TEST_CASE("ranks follow the node ranks", "[coordinator]") {
  CHECK(order({named("a", 2), named("b", 0), named("c", 1)}) == std::vector<std::string>{"b", "c", "a"});
}

TEST_CASE("ranks follow the natural order of names where no node rank is given", "[coordinator]") {
  CHECK(order({named("node10"), named("node9"), named("node1")}) ==
        std::vector<std::string>{"node1", "node9", "node10"});
}

TEST_CASE("nodes with a node rank come before those without", "[coordinator]") {
  CHECK(order({named("a"), named("c", 1), named("b"), named("d", 0)}) ==
        std::vector<std::string>{"d", "c", "a", "b"});
}

TEST_CASE("nodes with the same name rank in order of arrival", "[coordinator]") {
  CoordinatorRig rig(job(3, 3));
  const Ids ids = rig.form({"a", "a", "a"});
  for (std::size_t i = 0; i < 3; ++i) CHECK(rig.last<Start>(ids[i]).group_rank == static_cast<int>(i));
}

TEST_CASE("the order of arrival does not depend on connection numbers", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  rig.say(9, rig.wish("a"));
  rig.say(3, rig.wish("a"));
  rig.obey();
  CHECK(rig.last<Start>(9).group_rank == 0);
  CHECK(rig.last<Start>(3).group_rank == 1);
}

TEST_CASE("first ranks count the workers of the nodes before", "[coordinator]") {
  CoordinatorRig rig(job(3, 3));
  const Ids ids = {rig.join(rig.wish("c", 4)), rig.join(rig.wish("a", 2)), rig.join(rig.wish("b", 3))};
  rig.obey();
  const int first_ranks[] = {5, 0, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(rig.last<Start>(ids[i]).first_rank == first_ranks[i]);
    CHECK(rig.last<Start>(ids[i]).world_size == 9);
    CHECK(rig.last<Start>(ids[i]).group_world_size == 3);
  }
}

TEST_CASE("the master's address is --local-addr, else where its connection comes from", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  Join a = rig.wish("a");
  a.address = "fd00::1";
  rig.join(a);
  const auto b = rig.join("b");
  rig.obey();
  CHECK(rig.last<Start>(b).master_addr == "fd00::1");
}

TEST_CASE("the master's address is empty where the coordinator's own node leads", "[coordinator]") {
  const auto now = Coordinator::Time();
  Coordinator coordinator(job(1, 1), now);
  coordinator.receive(7, named("a"), "", now);
  coordinator.receive(7, Leading{0, 1234}, "", now);
  const auto messages = coordinator.take_messages();
  REQUIRE(messages.size() == 3);
  CHECK(std::get<Start>(messages[2].second).master_addr.empty());
}

TEST_CASE("a round whose leader is lost before it has a port is given up for the next", "[coordinator]") {
  CoordinatorRig rig(job(2, 2));
  const auto a = rig.join("a"), b = rig.join("b");
  CHECK(rig.last<Lead>(a).round == 0);
  rig.lose(a);
  CHECK_FALSE(rig.ended());
  CHECK(rig.last<Waiting>(b).present == 1);
  const auto c = rig.join("c");
  CHECK(rig.last<Lead>(b).round == 1);
  rig.say(b, Leading{1, 1234});
  CHECK(rig.last<Start>(c).number == 1);
  CHECK(rig.last<Start>(c).master_addr == "10.0.0.2");
}

TEST_CASE("the port of a round that was given up is not taken for the next one's", "[coordinator]") {
  CoordinatorRig rig(job(1, 3));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.join("c");
  rig.lose(b);
  CHECK(rig.last<Lead>(a).round == 1);
  rig.say(a, Leading{0, 1});
  CHECK(rig.count<Start>(a) == 0);
  rig.say(a, Leading{1, 2});
  CHECK(rig.last<Start>(a).master_port == 2);
}

}  // namespace
}  // namespace ddprun::launcher
