// What can go wrong before a job over several nodes runs.
#include <sys/socket.h>

#include <csignal>

#include "tests/network/nodes.h"
#include "tests/network/sockets.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

const Words kJob = {"--rdzv-id=job"};

Command with_token(Command command, const std::string& token) {
  command.env["DDPRUN_TOKEN"] = token;
  return command;
}

/// The coordinator is there and takes nodes.
void await_waiting(const Child& node) {
  const bool waits = wait_until([&] { return count_of("waiting for nodes", node.err()) > 0; });
  CAPTURE(node.err());
  REQUIRE(waits);
}

/// Node 1 comes wrongly, is refused with all of these texts on its stderr, and then comes rightly.
void check_refused(const Network& network, const Command& first, const Command& wrong, const Command& right,
                   const Words& texts) {
  Nodes nodes(network);
  nodes.start(0, first);
  await_waiting(nodes[0]);
  nodes.start(1, wrong);
  nodes.check_end(1, ExitStatus::exited(125));
  for (const std::string& text : texts) CHECK_THAT(nodes[1].err(), ContainsSubstring(text));
  nodes.start(1, right);
  nodes.check_end(2, ExitStatus::exited(0));
  nodes.check_end(0, ExitStatus::exited(0));
  CHECK(count_of("met ", nodes.all_out()) == 2);
}

/// Sends what a stranger sends, and stays.
UniqueFd intrude(const Network& network, int port, const std::string& bytes) {
  UniqueFd connection;
  network.run_on(2, [&] { connection = connect_to(Network::ipv4(0), port); });
  // As much as the other side takes.
  ::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return connection;
}

}  // namespace

TEST_CASE("a node that disagrees is refused with both sides named, and may come again", "[nodes]") {
  const Network network(2);
  const Command first = job(fixed(2, 0) + kJob, {"meet"}), right = job(fixed(2, 1) + kJob, {"meet"});
  SECTION("about the number of nodes") {
    check_refused(network, first, job(fixed(3, 1) + kJob, {"meet"}), right,
                  {"--nnodes=3", "--nnodes=2", "h1"});
  }
  SECTION("about the run") {
    check_refused(network, first, job(fixed(2, 1) + Words{"--rdzv-id=other"}, {"meet"}), right,
                  {"'other'", "'job'", "h1"});
  }
}

TEST_CASE("a node that does not have the token is refused, and may come again", "[nodes]") {
  const Network network(2);
  const Command first = with_token(job(fixed(2, 0), {"meet"}), "ours");
  const Command right = with_token(job(fixed(2, 1), {"meet"}), "ours");
  const Words texts = {"token", Network::ipv4(0) + ":29500"};
  SECTION("but another one") {
    check_refused(network, first, with_token(job(fixed(2, 1), {"meet"}), "theirs"), right, texts);
  }
  SECTION("or any") { check_refused(network, first, job(fixed(2, 1), {"meet"}), right, texts); }
}

TEST_CASE("a node with a token does not trust a coordinator without one", "[nodes]") {
  const Network network(2);
  check_refused(network, job(fixed(2, 0), {"meet"}), with_token(job(fixed(2, 1), {"meet"}), "ours"),
                job(fixed(2, 1), {"meet"}), {"token", Network::ipv4(0) + ":29500"});
}

TEST_CASE("a node rank that is asked for twice is refused with both nodes named", "[nodes]") {
  const Network network(3);
  Nodes nodes(network);
  nodes.start(0, fixed(3, 0), {"meet"});
  nodes.start(1, fixed(3, 1), {"meet"});
  await_waiting(nodes[1]);
  nodes.start(2, fixed(3, 1), {"meet"});
  nodes.check_end(2, ExitStatus::exited(125));
  for (const std::string text : {"node rank 1", "h1 (10.99.0.2)", "h2 (10.99.0.3)"})
    CHECK_THAT(nodes[2].err(), ContainsSubstring(text));
  nodes.start(2, fixed(3, 2), {"meet"});
  for (const std::size_t node : {0, 1, 3}) nodes.check_end(node, ExitStatus::exited(0));
}

TEST_CASE("node rank 0 on another host than the master address waits, and says which address is not its own",
          "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  nodes.start(1, fixed(2, 0) + Words{"--join-timeout=1"}, {"meet"});
  nodes.check_end(0, ExitStatus::exited(125));
  CHECK_THAT(nodes[0].err(), ContainsSubstring(Network::ipv4(0) + " is not an address of this host"));
}

TEST_CASE("strangers at the coordinator's port do no harm", "[nodes]") {
  const Network network(3);
  const TempDir dir;
  const auto done = dir.path() / "done";
  Nodes nodes(network);
  nodes.start(0, fixed(2, 0), {"meet", "wait-for-file", done.string()});
  await_waiting(nodes[0]);
  std::vector<UniqueFd> strangers;
  const auto come = [&] {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.1\r\nHost: h0\r\n\r\n"), std::string(1 << 20, '\0'),
          std::string(1 << 20, '\xff'), std::string("\x16\x03\x01\x02", 4)})
      strangers.push_back(intrude(network, 29500, bytes));
  };
  come();
  nodes.start(1, fixed(2, 1), {"meet", "wait-for-file", done.string()});
  REQUIRE(wait_until([&] { return count_of("met ", nodes.all_out()) == 2; }));
  come();
  write_file_atomic(done, "");
  nodes.check_all_exit(0);
}

TEST_CASE("a port that is taken ends the coordinator's node soon, with the owner named", "[nodes]") {
  const Network network(1);
  UniqueFd taken;
  Words flags;
  SECTION("as the master's port") { flags = fixed(2, 0) + Words{}; }
  SECTION("as the endpoint's port") { flags = elastic("2", Network::ipv4(0) + ":29500"); }
  network.run_on(0, [&] { taken = listen_at(Network::ipv4(0), 29500); });
  Nodes nodes(network);
  nodes.start(0, flags, {"meet"});
  CHECK(nodes[0].wait(20s) == ExitStatus::exited(125));
  CHECK_THAT(nodes[0].err(), ContainsSubstring("29500") && ContainsSubstring(std::to_string(::getpid())));
  check_nothing_left(nodes[0]);
}

TEST_CASE("the end of the join timeout lists who came and who is missing", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1}) nodes.start(host, fixed(3, host) + Words{"--join-timeout=8"}, {"meet"});
  nodes.check_all_exit(125);
  for (const std::size_t node : {0, 1})
    for (const std::string text : {"2 of 3", "h0", "h1 (10.99.0.2)", "node rank 2", "8 s"})
      CHECK_THAT(nodes[node].err(), ContainsSubstring(text));
}

TEST_CASE("a coordinator that is nowhere is named after the join timeout", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  SECTION("at an address") {
    nodes.start(1, fixed(2, 1) + Words{"--join-timeout=1"}, {"meet"});
    nodes.check_all_exit(125);
    CHECK_THAT(nodes[0].err(), ContainsSubstring(Network::ipv4(0) + ":29500"));
  }
  SECTION("at a name") {
    nodes.start(1, fixed(2, 1, "nowhere") + Words{"--join-timeout=1"}, {"meet"});
    nodes.check_all_exit(125);
    CHECK_THAT(nodes[0].err(), ContainsSubstring("nowhere"));
  }
}

TEST_CASE("Ctrl-C ends a node that waits", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  SECTION("for a coordinator that is nowhere") {
    nodes.start(1, fixed(2, 1), {"meet"});
    REQUIRE(wait_until([&] { return count_of(Network::ipv4(0) + ":29500", nodes[0].err()) > 0; }));
  }
  SECTION("for the others") {
    nodes.start(0, fixed(2, 0), {"meet"});
    await_waiting(nodes[0]);
  }
  nodes[0].send_signal(SIGINT);
  CHECK(nodes[0].wait() == ExitStatus::killed(SIGINT));
  check_nothing_left(nodes[0]);
}

TEST_CASE("Ctrl-C on one of the nodes that wait", "[nodes]") {
  const Network network(2);
  Nodes nodes(network);
  for (const int host : {0, 1}) {
    nodes.start(host, fixed(3, host) + Words{"--join-timeout=60"}, {"meet"});
    await_waiting(nodes[static_cast<std::size_t>(host)]);
  }
  SECTION("with the coordinator ends all") {
    nodes[0].send_signal(SIGINT);
    nodes.check_end(0, ExitStatus::killed(SIGINT));
    nodes.check_end(1, ExitStatus::exited(128 + SIGINT));
  }
  SECTION("without it makes room") {
    nodes[1].send_signal(SIGINT);
    nodes.check_end(1, ExitStatus::killed(SIGINT));
    for (const int rank : {1, 2}) nodes.start(1, fixed(3, rank), {"meet"});
    for (const std::size_t node : {0, 2, 3}) nodes.check_end(node, ExitStatus::exited(0));
  }
}
