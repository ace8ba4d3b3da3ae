// Hangs and time limits on several nodes: who counts as hanging, and what every node leaves behind.

#include <csignal>
#include <filesystem>

#include "tests/integration/node_job.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

/// The files with stacks in a log folder.
std::size_t stacks_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    count += entry.path().filename().string().starts_with("stacks_");
  return count;
}

/// Flags of a node of two that notices a hang soon.
std::vector<std::string> quick(const TempDir& logs, std::vector<std::string> more) {
  more.insert(more.end(), {"--nnodes=2", "--node-timeout=2", "--log-dir=" + logs.path().string()});
  return more;
}

TEST_CASE("rank 0's output keeps silent workers on other nodes alive", "[nodes][timeouts]") {
  const std::string text =
      "i=0; while [ $i -lt 20 ]; do [ $RANK != 0 ] || echo step $i; i=$((i + 1)); sleep 0.25; done";
  NodeJob nodes;
  nodes.start_script({"--nnodes=2", "--node-rank=0", "--hang-timeout=3", "--node-timeout=2"}, text);
  nodes.start_script({"--nnodes=2", "--node-rank=1", "--hang-timeout=3", "--node-timeout=2"}, text);
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
}

TEST_CASE("a hang on all nodes is found, and every node dumps its stacks", "[nodes][timeouts]") {
  const TempDir logs[2];
  NodeJob nodes;
  for (const TempDir& folder : logs)
    nodes.start(quick(folder, {"--hang-timeout=3", "--nproc-per-node=2"}), {"ready", "pause"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(124)));
  const std::string all = nodes.node(0).err() + nodes.node(1).err();
  CHECK(count_of("nor from any other running rank: compare the stacks on all nodes\n", all) > 0);
  for (const std::size_t node : {0U, 1U}) {
    CHECK_THAT(nodes.node(node).err(), ContainsSubstring("no sign of life from "));
    CHECK(stacks_in(logs[node].path()) == 2);
  }
}

TEST_CASE("where one node notices a hang or the end of the time, every node dumps its stacks",
          "[nodes][timeouts]") {
  const auto flag = GENERATE(as<std::string>(), "--timeout=4", "--hang-timeout=4");
  CAPTURE(flag);
  const TempDir logs[2];
  NodeJob nodes;
  nodes.start(quick(logs[0], {"--node-rank=0"}), {"ready", "pause"});
  nodes.start(quick(logs[1], {"--node-rank=1", flag}), flag == "--timeout=4"
                                                           ? std::vector<std::string>{"pause"}
                                                           : std::vector<std::string>{"beat", "3", "pause"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(124)));
  for (const TempDir& folder : logs) CHECK(stacks_in(folder.path()) == 1);
}

TEST_CASE("where another node lacks --hang-timeout, silent workers do not hang and a line says why",
          "[nodes][timeouts]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0", "--node-timeout=1"}, {"wait-for-file", go});
  nodes.start({"--nnodes=2", "--node-rank=1", "--node-timeout=1", "--hang-timeout=0.5"},
              {"wait-for-file", go});
  CHECK(wait_until([&] { return count_of("set --hang-timeout on every node", nodes.node(1).err()) == 1; }));
  write_file_atomic(go, "");
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
}

TEST_CASE("a hang is found although nobody reads the output of a node whose workers have succeeded",
          "[nodes][timeouts]") {
  NodeJob nodes;
  nodes.start_script({"--nnodes=2", "--node-rank=0", "--hang-timeout=3", "--node-timeout=2"},
                     "exec sleep 600");
  Command blocked =
      script(nodes.flags({"--nnodes=2", "--node-rank=1", "--hang-timeout=3", "--node-timeout=2"}),
             "echo enough >&2; head -c 200000 /dev/zero | tr '\\0' x >&2");
  with_full_stderr(blocked);
  nodes.add(blocked);
  CHECK(nodes.node(0).wait() == ExitStatus::exited(124));
  nodes.node(1).send_signal(SIGTERM);
  nodes.node(1).send_signal(SIGINT);
  nodes.node(1).wait();
  for (const std::size_t node : {0U, 1U}) check_nothing_left(nodes.node(node));
}

TEST_CASE("a hang is found although one node's ddprun stops again and again", "[nodes][timeouts]") {
  NodeJob nodes;
  for (const char* rank : {"0", "1"})
    nodes.start({"--nnodes=2", std::string("--node-rank=") + rank, "--hang-timeout=4", "--node-timeout=4"},
                {"ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  const auto ended = [&] { return count_of("no sign of life", nodes.node(0).err()) > 0; };
  for (int i = 0; i < 8 && !wait_until(ended, 1400ms); ++i) {
    nodes.node(1).send_signal(SIGSTOP);
    wait_until(ended, 1600ms);
    nodes.node(1).send_signal(SIGCONT);
  }
  CHECK(ended());
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(124)));
}

TEST_CASE("a time limit on a node that has succeeded dumps the stacks of the others", "[nodes][timeouts]") {
  const TempDir logs[2];
  NodeJob nodes;
  nodes.start(quick(logs[0], {"--node-rank=0", "--timeout=4"}), {"ready"});
  nodes.start(quick(logs[1], {"--node-rank=1"}), {"ready", "pause"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(124)));
  CHECK(stacks_in(logs[1].path()) == 1);
}

}  // namespace
