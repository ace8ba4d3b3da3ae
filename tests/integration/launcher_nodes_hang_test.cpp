// Hangs and time limits on several nodes: who counts as hanging, and what every node leaves behind.

#include "tests/integration/node_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Flags of a node of two that notices a hang soon.
std::vector<std::string> quick(const TempDir& logs, std::vector<std::string> more) {
  more.insert(more.end(), {"--nnodes=2", "--node-timeout=2", "--log-dir=" + logs.path().string()});
  return more;
}

TEST_CASE("rank 0's output keeps silent workers on other nodes alive", "[nodes][timeouts]") {
  const std::string text =
      "i=0; while [ $i -lt 20 ]; do [ $RANK != 0 ] || echo step $i; i=$((i + 1)); sleep 0.25; done";
  NodeJob nodes;
  nodes.start_script({"--nnodes=2", "--node-rank=0", "--hang-timeout=2", "--node-timeout=2"}, text);
  nodes.start_script({"--nnodes=2", "--node-rank=1", "--hang-timeout=2", "--node-timeout=2"}, text);
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
}

TEST_CASE("a hang on all nodes is found", "[nodes][timeouts]") {
  const TempDir logs[2];
  NodeJob nodes;
  for (const TempDir& folder : logs)
    nodes.start(quick(folder, {"--hang-timeout=1", "--nproc-per-node=2"}), {"ready", "pause"});
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(124)));
  for (const std::size_t node : {0U, 1U})
    CHECK_THAT(nodes.node(node).err(), ContainsSubstring("no sign of life from rank "));
}

}  // namespace
