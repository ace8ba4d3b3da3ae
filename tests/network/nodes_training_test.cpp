// The real worker over several hosts.
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>
#include <regex>

#include "tests/integration/training_job.h"
#include "tests/network/network.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

struct Training {
  nlohmann::json summary;
  std::vector<std::string> losses;
};

Training results(const fs::path& out) {
  Training training{read_summary(out), {}};
  for (const auto& row : read_metrics(out))
    if (row.count("train_loss") != 0) training.losses.push_back(row.at("train_loss"));
  return training;
}

/// mnist() with one thread a rank however it is started, for results that are the same to the last bit.
Command training(int ranks, const fs::path& out) {
  Command command = mnist(ranks, out, small({"--log-interval=1", "--seed=5"}));
  command.env["OMP_NUM_THREADS"] = "1";
  return command;
}

/// ddprun's flags for a node, in front of the program.
Command node(int nodes, int rank, const std::string& master_addr, const fs::path& out) {
  Command command = training(1, out);
  command.argv.insert(command.argv.begin() + 1,
                      {"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(rank),
                       "--master-addr=" + master_addr, "--master-port=29500"});
  return command;
}

Training train_on_one_node(int ranks) {
  const TempDir dir;
  auto command = training(ranks, dir.path() / "run");
  // Two ranks add the same two numbers either way; more of them in another order over sockets than in memory.
  if (ranks > 2) command.env["DDPRUN_SHARED_MEMORY"] = "0";
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  return results(dir.path() / "run");
}

Training train(const Network& network, int nodes, const std::string& master_addr) {
  const TempDir dir;
  std::deque<Child> children;
  for (int rank = 0; rank < nodes; ++rank)
    children.emplace_back(network.on(rank, node(nodes, rank, master_addr, dir.path() / "run")));
  for (Child& child : children) {
    const auto status = child.wait(kTraining);
    CAPTURE(child.err());
    CHECK(status == ExitStatus::exited(0));
    check_nothing_left(child);
  }
  return results(dir.path() / "run");
}

void check_same(const Training& several, const Training& one, int ranks) {
  CHECK(several.summary["world_size"] == ranks);
  CHECK(several.summary["test_acc"] == one.summary["test_acc"]);
  CHECK(several.summary["test_loss"] == one.summary["test_loss"]);
  CHECK(several.losses == one.losses);
}

}  // namespace

TEST_CASE("workers that are started by hand on two hosts train as on one", "[training]") {
  need_fashion_mnist();
  const bool ipv4 = GENERATE(true, false);
  const Network network(2, {.ipv4 = ipv4, .slow = {}});
  // As Debian does it: a host's own name has an address that is no use to others.
  network.set_names("127.0.1.1 h0 h1\n" + Network::ipv4(0) + " head\n" + Network::ipv6(0) + " head\n");
  const TempDir dir;
  std::deque<Child> workers;
  for (const int rank : {0, 1}) {
    Command command = training(0, dir.path() / "run");
    command.env.insert({{"RANK", std::to_string(rank)},
                        {"WORLD_SIZE", "2"},
                        {"LOCAL_RANK", "0"},
                        {"LOCAL_WORLD_SIZE", "1"},
                        {"MASTER_ADDR", "head"},
                        {"MASTER_PORT", "29500"}});
    workers.emplace_back(network.on(rank, command));
  }
  for (Child& worker : workers) {
    const auto status = worker.wait(kTraining);
    CAPTURE(worker.err());
    CHECK(status == ExitStatus::exited(0));
    CHECK(worker.err().find("warning") == std::string::npos);
    check_nothing_left(worker);
  }
  check_same(results(dir.path() / "run"), train_on_one_node(2), 2);
}

TEST_CASE("two and three nodes train as one node with as many ranks does", "[nodes][training]") {
  need_fashion_mnist();
  const int nodes = GENERATE(2, 3);
  const Network network(nodes);
  check_same(train(network, nodes, Network::ipv4(0)), train_on_one_node(nodes), nodes);
}

TEST_CASE("worker env --network names the node whose link is slow", "[training]") {
  const Network network(3);
  int status = -1;
  network.run_on(2, [&] {
    status = std::system("tc qdisc add dev eth0 root tbf rate 200mbit burst 256kb latency 50ms");
  });
  REQUIRE(status == 0);
  std::deque<Child> nodes;
  for (const int rank : {0, 1, 2}) {
    Command command{{DDPRUN_PROGRAM, "--nnodes=3", "--node-rank=" + std::to_string(rank),
                     "--master-addr=" + Network::ipv4(0), "--master-port=29500", "--nproc-per-node=1",
                     WORKER_PROGRAM, "env", "--device=cpu", "--network"}};
    nodes.emplace_back(network.on(rank, command));
  }
  for (Child& node : nodes) CHECK(node.wait(kTraining) == ExitStatus::exited(1));
  CAPTURE(nodes[0].out(), nodes[0].err());
  CHECK_THAT(nodes[0].out(), ContainsSubstring("\n  slowest                       rank 2 on h2, 0.02") &&
                                 ContainsSubstring("wrong: rank 2: network: expected about ") &&
                                 !ContainsSubstring("wrong: rank 0") && !ContainsSubstring("wrong: rank 1"));
  for (const std::string rank : {"0", "1", "2"})  // each node's own bandwidth, in the last column
    CHECK(std::regex_search(nodes[0].out(), std::regex("\n *" + rank + " +h" + rank + " .* [0-9.]+\n")));
}

TEST_CASE("workers ask no name server for the names of peers", "[training]") {
  need_fashion_mnist();
  const Network network(1);  // without a name server in resolv.conf, one on loopback is asked
  UniqueFd name_server;
  network.run_on(0, [&] {
    name_server.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(name_server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  });
  const TempDir dir;
  Child job(network.on(0, training(2, dir.path() / "run")));
  REQUIRE(job.wait(kTraining) == ExitStatus::exited(0));
  CHECK(job.err().find("[c10d]") == std::string::npos);
  char query[512];
  CHECK(::recv(name_server.get(), query, sizeof query, MSG_DONTWAIT) == -1);
}

TEST_CASE("nodes of IPv6 alone train as one node does", "[nodes][training]") {
  need_fashion_mnist();
  const Network network(2, {.ipv4 = false, .slow = {}});
  check_same(train(network, 2, Network::ipv6(0)), train_on_one_node(2), 2);
}

TEST_CASE("nodes whose own names are those of loopback train as one node does", "[nodes][training]") {
  need_fashion_mnist();
  const Network network(2);
  network.set_names("127.0.1.1 h0 h1\n" + Network::ipv4(0) + " head\n" + Network::ipv6(0) + " head\n");
  check_same(train(network, 2, "head"), train_on_one_node(2), 2);
}

TEST_CASE("when a node's network is cut, a spare replaces it and the other node's process goes on",
          "[nodes][training]") {
  need_fashion_mnist();
  const Network network(3);
  const TempDir dir;
  std::deque<Child> nodes;
  const auto start = [&](int host) {
    Command command = training(1, dir.path() / "run");
    command.argv.insert(command.argv.begin() + 1,
                        {"--nnodes=2", "--spares=1", "--recover=rank", "--max-restarts=2", "--node-timeout=2",
                         "--rdzv-id=cut", "--rdzv-endpoint=" + Network::ipv4(0)});
    command.argv.push_back("--epochs=1000");
    nodes.emplace_back(network.on(host, command));
  };
  for (const int host : {0, 1}) start(host);
  REQUIRE(nodes[0].wait_for_output("Loss"));
  start(2);
  REQUIRE(wait_until([&] { return count_of("standing by", nodes[2].err()) == 1; }));
  network.cut(1);
  const bool went_on = nodes[0].wait_for_output("continuing from memory");
  CAPTURE(nodes[0].out(), nodes[0].err());
  CHECK(went_on);
  CHECK(count_of("could not leave its round", nodes[0].err()) == 0);
}
