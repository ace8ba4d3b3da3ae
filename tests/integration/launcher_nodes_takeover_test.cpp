// A coordinator's node that its user ends.

#include <csignal>

#include "tests/integration/node_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

TEST_CASE("an elastic job goes on at once without the coordinator's node that its user ends", "[nodes]") {
  const std::size_t all = GENERATE(2U, 3U);
  CAPTURE(all);
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  for (std::size_t i = 0; i < all;
       ++i)  // nobody may wait for the timeouts, which are beyond the test's patience
    nodes.add(job(
        {"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:" + std::to_string(all),
         "--last-call=600", "--node-timeout=600", i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0"},
        {"meet", "wait-for-file", done}));
  for (std::size_t i = 0; i < all; ++i) REQUIRE(nodes.node(i).wait_for_output("round 0"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(nodes.node(0));
  for (std::size_t i = 1; i < all; ++i)
    REQUIRE(nodes.node(i).wait_for_output(" of " + std::to_string(all - 1) + ", round 0"));
  write_file_atomic(done, "");
  for (std::size_t i = 1; i < all; ++i) {
    CHECK(nodes.node(i).wait() == ExitStatus::exited(0));
    CHECK_THAT(nodes.node(i).err(), ContainsSubstring("which has the coordinator, received SIGTERM"));
  }
}

TEST_CASE("an elastic job goes on when the coordinator's node and another one are ended at once", "[nodes]") {
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  for (std::size_t i = 0; i < 3; ++i)
    nodes.add(job({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:3", "--last-call=600",
                   "--node-timeout=20", i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0"},
                  {"meet", "wait-for-file", done}));
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(nodes.node(i).wait_for_output("round 0"));
  for (const std::size_t i : {0U, 2U}) nodes.node(i).send_signal(SIGTERM);
  REQUIRE(nodes.node(1).wait_for_output(" of 1, round 0"));
  write_file_atomic(done, "");
  CHECK(nodes.wait() ==
        std::vector{ExitStatus::killed(SIGTERM), ExitStatus::exited(0), ExitStatus::killed(SIGTERM)});
  const int told = count_of("received SIGTERM", nodes.node(1).err());
  CHECK((told == 1 || told == 2));  // of the other one, too, if that was first
  CHECK(count_of("lost the coordinator", nodes.node(1).err()) == 0);
}

TEST_CASE("after a signal to the coordinator's node an elastic job waits for the nodes that it needs",
          "[nodes]") {
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  const auto add = [&](const std::string& is_host) {
    nodes.add(job({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=2:3", "--last-call=0",
                   "--rdzv-conf=is_host=" + is_host},
                  {"meet", "wait-for-file", done}));
  };
  add("1");
  add("0");
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output(" of 2, round 0"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGTERM));
  add("0");
  REQUIRE(nodes.node(1).wait_for_output(" of 2, round 0", 2));
  write_file_atomic(done, "");
  CHECK(nodes.wait() ==
        std::vector{ExitStatus::killed(SIGTERM), ExitStatus::exited(0), ExitStatus::exited(0)});
}

TEST_CASE("a signal to the coordinator's node ends a job of fixed size, whatever endpoints it has",
          "[nodes]") {
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  for (const char* host : {"1", "0"})
    nodes.add(job({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=2", "--max-restarts=3",
                   std::string("--rdzv-conf=is_host=") + host},
                  {"meet", "ready", "pause"}));
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.wait() == std::vector{ExitStatus::killed(SIGTERM), ExitStatus::exited(128 + SIGTERM)});
}

}  // namespace
