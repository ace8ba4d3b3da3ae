// Jobs over several nodes that go well.
#include "tests/network/nodes.h"
#include "tests/network/sockets.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

TEST_CASE("nodes of a fixed number start together, with ranks by node rank", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  // In any order, and with different numbers of workers.
  nodes.start(2, fixed(3, 2) + Words{"--nproc-per-node=1"}, {"meet"});
  nodes.start(0, fixed(3, 0) + Words{"--nproc-per-node=2"}, {"meet"});
  nodes.start(1, fixed(3, 1) + Words{"--nproc-per-node=3"}, {"meet"});
  nodes.check_all_exit(0);
  const std::string where = ", round 0 at " + Network::ipv4(0) + " ";
  for (const int rank : {0, 1})
    CHECK(count_of("met " + std::to_string(rank) + " of 6" + where, nodes[1].out()) == 1);
  for (const int rank : {2, 3, 4})
    CHECK(count_of("met " + std::to_string(rank) + " of 6" + where, nodes[2].out()) == 1);
  CHECK(count_of("met 5 of 6" + where, nodes[0].out()) == 1);
}

TEST_CASE("workers of several nodes see the job as torchrun's do", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  const Words flags = {"--nproc-per-node=2", "--rdzv-id=job", "--max-restarts=3"};
  const std::string text =
      "echo $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_WORLD_SIZE "
      "$MASTER_ADDR $TORCHELASTIC_RUN_ID $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RESTART_COUNT";
  for (const int host : {0, 1}) nodes.start(host, script(fixed(2, host) + flags, text));
  nodes.check_all_exit(0);
  for (const int node : {0, 1})
    for (const int local : {0, 1}) {
      const std::string line = std::to_string(2 * node + local) + " " + std::to_string(local) + " " +
                               std::to_string(node) + " 4 2 2 " + Network::ipv4(0) + " job 3 0\n";
      CHECK(count_of(line, nodes[static_cast<std::size_t>(node)].out()) == 1);
    }
}

TEST_CASE("an elastic job starts at once at its most nodes, with ranks by name", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  for (const int host : {2, 0, 1}) nodes.start(host, elastic("1:3") + Words{"--last-call=60"}, {"meet"});
  nodes.check_all_exit(0);  // long before the last call
  CHECK(count_of("met 2 of 3", nodes[0].out()) == 1);
  CHECK(count_of("met 0 of 3", nodes[1].out()) == 1);
  CHECK(count_of("met 1 of 3", nodes[2].out()) == 1);
}

TEST_CASE("an elastic job starts with fewer nodes after the last call", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, elastic("2:3") + Words{"--last-call=1"}, {"meet"});
  nodes.check_all_exit(0);
  CHECK(count_of("of 2, round 0", nodes.all_out()) == 2);
}

TEST_CASE("nodes with one token meet", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1}) {
    Command command = script(fixed(2, host), "echo token=$DDPRUN_TOKEN.");
    command.env["DDPRUN_TOKEN"] = "a secret of ours";
    nodes.start(host, command);
  }
  nodes.check_all_exit(0);
  CHECK(count_of("token=.", nodes.all_out()) == 2);  // it is not for workers
  for (const std::size_t node : {0, 1}) CHECK(count_of("no token", nodes[node].err()) == 0);
}

TEST_CASE("nodes of IPv6 alone meet", "[nodes]") {
  const Network network(2, {.ipv4 = false, .slow = {}});
  Nodes nodes(network);
  SECTION("at an endpoint") {
    for (const int host : {0, 1})
      nodes.start(host, elastic("2", "[" + Network::ipv6(0) + "]:29400"), {"meet"});
  }
  SECTION("at a master address") {
    for (const int host : {0, 1}) nodes.start(host, fixed(2, host, Network::ipv6(0)), {"meet"});
  }
  nodes.check_all_exit(0);
  CHECK(count_of("at " + Network::ipv6(0) + " ", nodes.all_out()) == 2);
}

TEST_CASE("an endpoint's name may stand for several addresses, of which one can be reached", "[nodes]") {
  const Network network(2);
  network.set_names("203.0.113.7 head\n" + Network::ipv4(0) + " head\n2001:db8::7 head\n");
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, elastic("2", "head:29400"), {"meet"});
  nodes.check_all_exit(0);
  CHECK(count_of("at " + Network::ipv4(0) + " ", nodes.all_out()) == 2);
}

TEST_CASE("a host whose own name is one for loopback can be the coordinator's", "[nodes]") {
  const Network network(2);
  network.set_names("127.0.1.1 h0\n");
  Nodes nodes(network);
  nodes.start(0, fixed(2, 0, "h0"), {"meet"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes[0].err()) == 1; }));
  network.set_names(Network::ipv4(0) + " h0\n");
  nodes.start(1, fixed(2, 1, "h0"), {"meet"});
  nodes.check_all_exit(0);
  CHECK(count_of("at " + Network::ipv4(0) + " ", nodes[1].out()) == 1);
}

TEST_CASE("where the other nodes reach this one is what --local-addr says", "[nodes]") {
  const Network network(2);
  network.add_address(0, "10.99.0.77");
  Nodes nodes(network);
  nodes.start(0, fixed(2, 0) + Words{"--local-addr=10.99.0.77"}, {"meet"});
  nodes.start(1, fixed(2, 1), {"meet"});
  nodes.check_all_exit(0);
  CHECK(count_of("at 10.99.0.77 ", nodes.all_out()) == 2);
}

TEST_CASE("a job lives with a network that is slow and loses much", "[nodes]") {
  const Network network(2, {.ipv4 = true, .slow = Impairment{50ms, 0.05}});
  Nodes nodes(network);
  SECTION("to its end") {
    for (const int host : {0, 1}) nodes.start(host, fixed(2, host), {"meet"});
    nodes.check_all_exit(0);
  }
  SECTION("and with a failure in it") {
    for (const int host : {0, 1})
      nodes.start(host, fixed(2, host), {"meet", "--rank", "1", "exit", "7", "--all", "pause"});
    nodes.check_all_exit(7);
  }
}
