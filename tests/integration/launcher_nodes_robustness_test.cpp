// Several nodes among strangers and liars, and nodes that are stopped for a while.

#include <poll.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/integration/node_job.h"
#include "tests/support/own_addresses.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// A coordinator that says what it likes.
class Liar {
 public:
  explicit Liar(const std::string& port) : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(listening_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const sockaddr_in address = loopback(port);
    REQUIRE(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listening_.get(), 1) == 0);
  }

  void await_node() {
    pollfd waiting{listening_.get(), POLLIN, 0};
    REQUIRE(::poll(&waiting, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) == 1);
    node_.reset(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    send(std::string("ddprun\r\n\0\3\0\0", 12) + std::string(20, '\0'));
  }

  void say(const nlohmann::json& message) {
    const std::string text = message.dump();
    const auto size = static_cast<std::uint32_t>(text.size());
    const std::uint32_t length = htonl(size);
    send(std::string(reinterpret_cast<const char*>(&length), sizeof length) + text);
  }

  /// Waits until the node has said this.
  bool hears(const std::string& text) {
    char bytes[256];
    while (heard_.find(text) == std::string::npos) {
      const ssize_t size = ::recv(node_.get(), bytes, sizeof bytes, 0);
      if (size <= 0) return false;
      heard_.append(bytes, static_cast<std::size_t>(size));
    }
    return true;
  }

 private:
  void send(const std::string& bytes) {
    REQUIRE(::send(node_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  UniqueFd listening_, node_;
  std::string heard_;
};

nlohmann::json start_of_second_node(int round, bool in_place) {
  return {{"type", "start"},      {"round", round},
          {"group_rank", 1},      {"group_world_size", 2},
          {"first_rank", 1},      {"world_size", 2},
          {"first_role_rank", 1}, {"role_world_size", 2},
          {"restart_count", 0},   {"master_addr", "127.0.0.1"},
          {"master_port", 1},     {"run_id", "x"},
          {"in_place", in_place}, {"restarts_used", 0},
          {"max_restarts", 0},    {"reason", ""}};
}

TEST_CASE("a coordinator's words cannot drive the terminal", "[nodes]") {
  const std::string port = free_port();
  Liar liar(port);
  Child node(job({"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=" + port},
                 {"ready", "pause"}));
  liar.await_node();
  liar.say({{"type", "waiting"},
            {"present", 2},
            {"min_nodes", 2},
            {"max_nodes", 2},
            {"spare", false},
            {"node_timeout_ms", 600'000}});
  liar.say(start_of_second_node(0, false));
  REQUIRE(node.wait_for_output("ready 1 "));
  liar.say({{"type", "end"}, {"exit_code", 9}, {"reason", "bye\x1b]0;title\x07\nddprun: error: forged"}});
  CHECK(node.wait() == ExitStatus::exited(9));
  CHECK_THAT(node.err(), ContainsSubstring("bye"));
  CHECK(count_of("\x1b", node.err()) == 0);
  CHECK(count_of("\nddprun: error: forged", node.err()) == 0);
  check_nothing_left(node);
}

TEST_CASE("workers succeed in their own round, although the node already leads the next one",
          "[nodes][recover]") {
  const std::string port = free_port();
  const TempDir folder;
  const std::string go = folder.path() / "go";
  Liar liar(port);
  Child node(job({"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=" + port,
                  "--recover=rank", "--max-restarts=1"},
                 {"ready", "wait-for-file", go}));
  liar.await_node();
  liar.say(start_of_second_node(0, false));
  REQUIRE(node.wait_for_output("ready 1 "));
  liar.say({{"type", "lead"}, {"round", 1}});
  REQUIRE(liar.hears(R"("type":"leading"})"));
  write_file_atomic(go, "");
  CHECK(liar.hears(R"({"round":0,"type":"succeeded"})"));
  liar.say({{"type", "end"}, {"exit_code", 0}, {"reason", ""}});
  CHECK(node.wait() == ExitStatus::exited(0));
  check_nothing_left(node);
}

TEST_CASE("strangers do not use up the coordinator's descriptors", "[nodes]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  const std::string text = "echo here; until [ -e " + go +
                           " ]; do sleep 0.02; done; [ $TORCHELASTIC_RESTART_COUNT != 0 ] || exit 3";
  constexpr rlim_t kFiles = 96;
  NodeJob nodes;
  Command first = script(nodes.flags({"--nnodes=2", "--max-restarts=1", "--nproc-per-node=2"}), text);
  first.in_child = [] {
    const rlimit files{kFiles, kFiles};
    ::setrlimit(RLIMIT_NOFILE, &files);
  };
  nodes.add(first);
  nodes.start_script({"--nnodes=2"}, text);
  REQUIRE(nodes.node(0).wait_for_output("here", 2));
  REQUIRE(nodes.node(1).wait_for_output("here"));
  std::vector<UniqueFd> strangers;
  for (rlim_t i = 0; i < 2 * kFiles; ++i) strangers.push_back(connect_to(nodes.port));
  // One came too many, and another one is gone: either makes room, or there is none.
  REQUIRE(wait_until(
      [&] { return is_closed(strangers[0]) || count_of("Too many open files", nodes.node(0).err()) > 0; }));
  write_file_atomic(go, "");
  const auto ends = nodes.wait();
  INFO(nodes.node(0).err());
  CHECK(ends == std::vector(2, ExitStatus::exited(0)));
}

TEST_CASE("who does not begin with a join is no node, and does not delay the end", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) == 1; }));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(say_at(nodes.port, R"({"type":"beat"})"));
  for (const UniqueFd& fd : strangers)
    REQUIRE(wait_until([&] { return is_closed(fd); }, std::chrono::seconds(5)));
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
  CHECK_THAT(nodes.node(0).err(),
             ContainsSubstring("a connection from this host: expected the first message"));
}

TEST_CASE("a thousand strangers cause a few lines, of which one counts the others", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0", "--node-timeout=1"}, {"ready"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) == 1; }));
  constexpr int kStrangers = 1000;
  for (int i = 0; i < kStrangers; ++i) {
    const UniqueFd fd = say_at(nodes.port, "nonsense");
    REQUIRE(wait_until([&] { return is_closed(fd); }));
  }
  REQUIRE(wait_until([&] { return count_of("such lines were left out", nodes.node(0).err()) > 0; }));
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
  CHECK(count_of("a connection from this host", nodes.node(0).err()) < kStrangers / 10);
}

TEST_CASE("a job that is stopped on all nodes goes on when it is continued", "[nodes]") {
  NodeJob nodes;
  for (const char* rank : {"0", "1"})
    nodes.start({"--nnodes=2", std::string("--node-rank=") + rank, "--node-timeout=2"}, {"ready", "await"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  for (const std::size_t node : {0U, 1U}) nodes.node(node).send_signal(SIGSTOP);
  ::sleep(3);  // more than the node timeout
  for (const std::size_t node : {0U, 1U}) nodes.node(node).send_signal(SIGCONT);
  for (const std::size_t node : {0U, 1U}) nodes.node(node).send_signal(SIGUSR1);
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
}

TEST_CASE("a node that was dropped while it was stopped comes back", "[nodes]") {
  NodeJob nodes;
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  const std::vector<std::string> flags = {
      "--rdzv-endpoint=127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port(), "--nnodes=2", "--spares=1",
      "--node-timeout=2"};
  const auto result = [&](std::size_t node) { return dir.path() / ("result" + std::to_string(node)); };
  const auto start = [&] {
    auto own = flags;
    own.push_back("--result-json=" + result(nodes.size()).string());
    if (nodes.size() < 2) own.push_back("--node-rank=" + std::to_string(nodes.size()));
    nodes.add(job(own, {"meet", "wait-for-file", done}));
  };
  const auto await = [&](std::size_t node, const std::string& line) {
    const bool came = wait_until([&] { return count_of(line, nodes.node(node).err()) > 0; });
    CAPTURE(node, line, nodes.node(node).err());
    REQUIRE(came);
  };
  start();
  await(0, "waiting for nodes: 1");
  start();
  REQUIRE(nodes.node(1).wait_for_output("round 0"));
  start();
  await(2, "standing by");
  nodes.node(1).send_signal(SIGSTOP);
  REQUIRE(nodes.node(2).wait_for_output("met "));
  nodes.node(1).send_signal(SIGCONT);
  await(1, "was dropped: no sign of life for 2 s");
  await(1, "standing by");
  write_file_atomic(done, "");
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
  for (const std::size_t node : {0U, 1U, 2U}) {
    const auto json = nlohmann::json::parse(read_file(result(node)));
    CHECK(json.at("reason") == "succeeded");
    CHECK(json.value("message", "") ==
          (node == 1 ? "the job 'none' ended without this node: all workers succeeded" : ""));
  }
}

TEST_CASE("a token that Slurm's numbers make is called what it is", "[nodes]") {
  std::string outward;
  for (const std::string& address : own_addresses())
    if (address.find(':') == std::string::npos && address.compare(0, 4, "127.") != 0) outward = address;
  if (outward.empty()) skip("this host has no address that others can reach");
  Command command = job({"--join-timeout=1"}, {});
  command.env.insert({{"SLURM_JOB_ID", "7"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NODELIST", outward + ",other"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                      {"SLURMD_NODENAME", outward},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_PROCID", "0"}});
  const std::string warning = "its token is derived from them";
  CHECK_THAT(Finished(command).err, ContainsSubstring(warning));
  command.env["DDPRUN_TOKEN"] = "a secret";
  CHECK(count_of(warning, Finished(command).err) == 0);
}

}  // namespace
