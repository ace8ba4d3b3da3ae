// What fails once a job over several nodes runs.
#include <csignal>

#include "tests/network/nodes.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

void kill_node(Child& node) { node.send_signal(SIGKILL); }

const ExitStatus kKilled = ExitStatus::killed(SIGKILL);

/// All ranks have met.
void await_meeting(Nodes& nodes, int ranks) {
  const bool met = wait_until([&] { return count_of("met ", nodes.all_out()) == ranks; });
  std::string err;
  for (std::size_t node = 0; !met && node < nodes.size(); ++node)
    err += "node " + std::to_string(node) + ":\n" + nodes[node].err();
  CAPTURE(nodes.all_out(), err);
  REQUIRE(met);
}

}  // namespace

TEST_CASE("a rank that fails on one node ends all nodes with its code", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  for (const int host : {0, 1, 2})
    nodes.start(host, fixed(3, host) + Words{"--nproc-per-node=2"},
                {"meet", "--rank", "3", "exit", "7", "--all", "pause"});
  nodes.check_all_exit(7);
  for (const std::size_t other : {0, 2}) {
    CAPTURE(nodes[other].err());
    CHECK_THAT(nodes[other].err(), ContainsSubstring("rank 3") && ContainsSubstring("exit code 7") &&
                                       ContainsSubstring(Network::name(1)));
  }
}

TEST_CASE("a rank that is killed on one node ends all nodes with 128 and its signal", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1})
    nodes.start(host, fixed(2, host), {"meet", "--rank", "0", "kill", "11", "--all", "pause"});
  nodes.check_all_exit(128 + SIGSEGV);
  CHECK_THAT(nodes[1].err(), ContainsSubstring("rank 0") && ContainsSubstring("SIGSEGV"));
}

TEST_CASE("all nodes restart together, at a new port", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  const std::string stub = STUB_WORKER_PROGRAM;
  const std::string once = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec " + stub +
                           " meet; [ $RANK = 3 ] && exec " + stub + " meet exit 7; exec " + stub +
                           " meet pause";
  for (const int host : {0, 1})
    nodes.start(host, script(elastic("2") + Words{"--nproc-per-node=2", "--max-restarts=1"}, once));
  nodes.check_all_exit(0);
  CHECK(count_of("met 3 of 4, round 0", nodes.all_out()) ==
        1);  // the others may have ended before they said so
  CHECK(count_of("of 4, round 1", nodes.all_out()) == 4);
  const auto port_of_round = [&](const std::string& round) {
    const std::string out = nodes.all_out(), where = "round " + round + " at " + Network::ipv4(0) + " ";
    const auto begin = out.find(where) + where.size();
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  CHECK(port_of_round("0") != port_of_round("1"));
}

TEST_CASE("the restarts of all nodes together are counted once", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1})
    nodes.start(host, fixed(2, host) + Words{"--max-restarts=2"},
                {"meet", "--rank", "1", "exit", "7", "--all", "pause"});
  nodes.check_all_exit(7);
  CHECK(count_of("met 1 of 2", nodes.all_out()) == 3);
}

TEST_CASE("a node's ddprun that is killed ends a job of a fixed number of nodes", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  for (const int host : {0, 1, 2}) nodes.start(host, fixed(3, host), {"meet", "pause"});
  await_meeting(nodes, 3);
  kill_node(nodes[1]);
  nodes.check_end(1, kKilled);
  for (const std::size_t other : {0, 2}) {
    nodes.check_end(other, ExitStatus::exited(125));
    CHECK_THAT(nodes[other].err(), ContainsSubstring(Network::name(1)) && ContainsSubstring("lost"));
  }
}

TEST_CASE("the survivors of an elastic job go on without a node's ddprun that is killed", "[nodes]") {
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  for (const int host : {0, 1, 2})
    nodes.start(host, elastic("2:3"), {"meet", "wait-for-file", done.string()});
  await_meeting(nodes, 3);
  kill_node(nodes[1]);
  await_meeting(nodes, 3 + 2);
  write_file_atomic(done, "");
  nodes.check_end(1, kKilled);
  for (const std::size_t other : {0, 2}) {
    nodes.check_end(other, ExitStatus::exited(0));
    CHECK(count_of("of 2, round 0", nodes[other].out()) == 1);  // a lost node is not a failure
  }
}

TEST_CASE("an elastic job that has lost too many nodes waits for another", "[nodes]") {
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  const Words flags = elastic("2:3") + Words{"--last-call=1"},
              actions = {"meet", "wait-for-file", done.string()};
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, flags, actions);
  await_meeting(nodes, 2);
  kill_node(nodes[1]);
  nodes.check_end(1, kKilled);
  nodes.start(2, flags, actions);
  await_meeting(nodes, 2 + 2);
  write_file_atomic(done, "");
  for (const std::size_t node : {0, 2}) nodes.check_end(node, ExitStatus::exited(0));
}

TEST_CASE("the coordinator's ddprun that is killed ends the job everywhere", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  SECTION("of a fixed number of nodes") {
    for (const int host : {0, 1, 2}) nodes.start(host, fixed(3, host), {"meet", "pause"});
  }
  SECTION("of an elastic number of nodes") {
    for (const int host : {0, 1, 2}) nodes.start(host, elastic("1:3"), {"meet", "pause"});
  }
  await_meeting(nodes, 3);
  kill_node(nodes[0]);
  nodes.check_end(0, kKilled);
  for (const std::size_t other : {1, 2}) {
    nodes.check_end(other, ExitStatus::exited(125));
    CHECK_THAT(nodes[other].err(), ContainsSubstring("coordinator") && ContainsSubstring(Network::ipv4(0)));
  }
}

TEST_CASE("a node whose link is cut is lost on both sides after the node timeout", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1})
    nodes.start(host, fixed(2, host) + Words{"--node-timeout=2"}, {"meet", "pause"});
  await_meeting(nodes, 2);
  network.cut(1);
  nodes.check_all_exit(125);
  CHECK_THAT(nodes[0].err(), ContainsSubstring(Network::name(1)) && ContainsSubstring("lost"));
  CHECK_THAT(nodes[1].err(), ContainsSubstring("coordinator") && ContainsSubstring(Network::ipv4(0)));
}

TEST_CASE("an elastic job goes on without a node whose link is cut", "[nodes]") {
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  for (const int host : {0, 1, 2})
    nodes.start(host, elastic("1:3") + Words{"--node-timeout=2"}, {"meet", "wait-for-file", done.string()});
  await_meeting(nodes, 3);
  network.cut(2);
  nodes.check_end(2, ExitStatus::exited(125));
  await_meeting(nodes, 3 + 2);
  write_file_atomic(done, "");
  for (const std::size_t other : {0, 1}) nodes.check_end(other, ExitStatus::exited(0));
}

TEST_CASE("of a network that breaks, the larger part goes on with another coordinator", "[nodes]") {
  const std::string fault = GENERATE("dies", "is stopped", "is cut off");
  CAPTURE(fault);
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  const std::string endpoints = Network::ipv4(0) + "," + Network::ipv4(1) + "," + Network::ipv4(2);
  for (const int host : {0, 1, 2})
    nodes.start(host, elastic("1:3", endpoints) + Words{"--node-timeout=2"},
                {"meet", "wait-for-file", done.string()});
  await_meeting(nodes, 3);
  const bool cut = fault == "is cut off";
  if (cut)
    network.cut(0);
  else
    nodes[0].send_signal(fault == "dies" ? SIGKILL : SIGSTOP);
  await_meeting(nodes, 3 + 2);
  if (!cut) kill_node(nodes[0]);
  nodes.check_end(0, cut ? ExitStatus::exited(125) : kKilled);
  if (cut) CHECK_THAT(nodes[0].err(), ContainsSubstring("may go on with another coordinator"));
  CHECK_THAT(nodes[1].err(), ContainsSubstring("this node has the coordinator now"));
  write_file_atomic(done, "");
  for (const std::size_t other : {1, 2}) nodes.check_end(other, ExitStatus::exited(0));
}

TEST_CASE("the smaller part of a broken network does not go on", "[nodes]") {
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  const std::string endpoints = Network::ipv4(0) + "," + Network::ipv4(1);
  for (const int host : {0, 1, 2})
    nodes.start(host, elastic("1:3", endpoints) + Words{"--node-timeout=2", "--join-timeout=8"},
                {"meet", "wait-for-file", done.string()});
  await_meeting(nodes, 3);
  network.cut(1);
  await_meeting(nodes, 3 + 2);
  nodes.check_end(1, ExitStatus::exited(125));
  CHECK_THAT(nodes[1].err(), ContainsSubstring("1 of the last round's 3 nodes came within"));
  write_file_atomic(done, "");
  for (const std::size_t other : {0, 2}) nodes.check_end(other, ExitStatus::exited(0));
}

namespace {

/// Two nodes and a spare on three hosts, each of which may have the coordinator.
struct TwoAndASpare {
  explicit TwoAndASpare(const Network& network) : nodes(network) {
    const std::string endpoints = Network::ipv4(0) + "," + Network::ipv4(1) + "," + Network::ipv4(2);
    const Words flags = {"--nnodes=2",       "--spares=1",    "--max-restarts=1",
                         "--node-timeout=2", "--rdzv-id=job", "--rdzv-endpoint=" + endpoints};
    for (const int host : {0, 1, 2}) {
      nodes.start(host, flags, {"meet", "wait-for-file", done.string()});
      if (host == 1) await_meeting(nodes, 2);
    }
    await_in(2, "standing by");
  }
  void await_in(std::size_t node, const std::string& line) {
    const bool came = wait_until([&] { return count_of(line, nodes[node].err()) > 0; });
    CAPTURE(node, line, nodes[0].err(), nodes[1].err(), nodes[2].err());
    REQUIRE(came);
  }
  TempDir dir;
  std::filesystem::path done = dir.path() / "done";
  Nodes nodes;
};

}  // namespace

TEST_CASE("the coordinator's node and the others find each other when its cable is back", "[nodes]") {
  const Network network(3);
  TwoAndASpare job(network);
  network.cut(0);
  job.await_in(1, "this node has the coordinator now");  // with one of the round's two nodes, as on host 0
  network.mend(0);
  await_meeting(job.nodes, 2 + 2);
  write_file_atomic(job.done, "");
  job.nodes.check_all_exit(0);  // one of them stood by
}

TEST_CASE("a node whose cable is back stands by", "[nodes]") {
  const Network network(3);
  TwoAndASpare job(network);
  network.cut(1);
  await_meeting(job.nodes, 2 + 2);
  job.await_in(1, "this node has the coordinator now");
  network.mend(1);
  job.await_in(1, "standing by");
  write_file_atomic(job.done, "");
  job.nodes.check_all_exit(0);
  CHECK_THAT(job.nodes[1].err(), ContainsSubstring("ended without this node: all workers succeeded"));
}

TEST_CASE("a link that is cut for less than the node timeout does no harm", "[nodes]") {
  const Network network(2);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, fixed(2, host), {"meet", "wait-for-file", done.string()});
  await_meeting(nodes, 2);
  network.cut(1);
  network.mend(1);
  write_file_atomic(done, "");
  nodes.check_all_exit(0);
}

TEST_CASE("a signal on one node of a fixed number ends the job everywhere", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, fixed(2, host), {"meet", "pause"});
  await_meeting(nodes, 2);
  const std::size_t receiver = GENERATE(as<std::size_t>{}, 0, 1);
  nodes[receiver].send_signal(SIGINT);
  nodes.check_end(receiver, ExitStatus::killed(SIGINT));
  nodes.check_end(1 - receiver, ExitStatus::exited(128 + SIGINT));
  CHECK_THAT(nodes[1 - receiver].err(),
             ContainsSubstring("h" + std::to_string(receiver)) && ContainsSubstring("SIGINT"));
}

TEST_CASE("a signal while a node ends its workers for another's failure", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  const Words actions = {"ignore-term", "meet", "--rank", "1", "exit", "7", "--all", "pause"};
  const auto interrupt = [&] {
    const bool ends = wait_until([&] { return count_of("ending this node's workers", nodes[0].err()) == 1; });
    CAPTURE(nodes[0].err());
    REQUIRE(ends);
    nodes[0].send_signal(SIGINT);  // which ends the workers
  };
  SECTION("changes nothing if the job is over") {
    for (const int host : {0, 1}) nodes.start(host, fixed(2, host), actions);
    interrupt();
    nodes.check_all_exit(7);
  }
  SECTION("ends the node if the job would go on") {
    for (const int host : {0, 1}) nodes.start(host, fixed(2, host) + Words{"--max-restarts=1"}, actions);
    interrupt();
    nodes.check_end(0, ExitStatus::killed(SIGINT));
    nodes.check_end(1, ExitStatus::exited(128 + SIGINT));
  }
}

TEST_CASE("a signal on all nodes at once, as from a scheduler, ends the job", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  for (const int host : {0, 1, 2}) nodes.start(host, fixed(3, host), {"meet", "pause"});
  await_meeting(nodes, 3);
  for (const std::size_t node : {0, 1, 2}) nodes[node].send_signal(SIGTERM);
  for (const std::size_t node : {0, 1, 2}) {
    const auto status = nodes[node].wait(60s);
    CAPTURE(node, nodes[node].err());
    CHECK((status == ExitStatus::killed(SIGTERM) || status == ExitStatus::exited(128 + SIGTERM)));
    check_nothing_left(nodes[node]);
  }
}

TEST_CASE("a worker that is lost while the next round begins is replaced in that round", "[nodes][clock]") {
  const Network network(2, {.ipv4 = true, .slow = Impairment{200ms, 0}});
  Nodes nodes(network);
  for (const int host :
       {0, 1})  // rank 0 is on host 1: its node hears of the round, and 400 ms later of its begin
    nodes.start(host,
                elastic("2") + Words{"--node-rank=" + std::to_string(1 - host), "--nproc-per-node=2",
                                     "--recover=rank", "--max-restarts=1"},
                {"recovers", "true", "--old-rank", "1", "expect-no-signal", "500", "kill", "9", "--old-rank",
                 "0", "expect-no-signal", "1100", "kill", "9", "--old", "wait-for-round", "--all", "ready"});
  nodes.check_all_exit(0);
  CHECK(count_of("ready ", nodes.all_out()) == 4);
}
