// A coordinator's node that its user ends.

#include <fcntl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
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

TEST_CASE("a node that leaves while it looks for the next coordinator does not cost its vote", "[nodes]") {
  boost::asio::io_context io;
  // A stranger who says nothing has the next endpoint's port: the nodes look for a while.
  boost::asio::ip::tcp::acceptor stranger(io, {boost::asio::ip::address_v4::loopback(), 0});
  ::fcntl(stranger.native_handle(), F_SETFD, FD_CLOEXEC);
  NodeJob nodes;
  const std::string endpoints =
      "127.0.0.1:" + nodes.port + ",127.0.0.1:" + std::to_string(stranger.local_endpoint().port());
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  for (std::size_t i = 0; i < 3; ++i)
    nodes.add(job({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:3", "--last-call=600",
                   "--node-timeout=8", i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0"},
                  {"meet", "wait-for-file", done}));
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(nodes.node(i).wait_for_output("round 0"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGTERM));
  nodes.node(2).send_signal(SIGTERM);
  CHECK(wait_until([&] { return count_of("as soon as the next round", nodes.node(2).err()) > 0; }));
  stranger.close();
  const bool goes_on = nodes.node(1).wait_for_output(" of 1, round 0");
  CAPTURE(nodes.node(1).out(), nodes.node(1).err(), nodes.node(2).out(), nodes.node(2).err());
  REQUIRE(goes_on);
  write_file_atomic(done, "");
  CHECK(nodes.wait() ==
        std::vector{ExitStatus::killed(SIGTERM), ExitStatus::exited(0), ExitStatus::killed(SIGTERM)});
}

TEST_CASE(
    "a node that gets its signal while its workers save after the coordinator's loss does not cost its vote",
    "[nodes]") {
  NodeJob nodes;
  const std::string endpoints =
      "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port() + ",127.0.0.1:" + free_port();
  for (std::size_t i = 0; i < 3; ++i)
    nodes.add(script({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:3", "--last-call=600",
                      "--join-timeout=10", i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0"},
                     "trap 'echo saving; sleep 1; exit 0' TERM; [ $WORLD_SIZE = 1 ] && exit 0; echo ready; "
                     "while :; do sleep 0.1; done"));
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(nodes.node(i).wait_for_output("ready"));
  nodes.node(0).send_signal(SIGKILL);
  REQUIRE(nodes.node(2).wait_for_output("saving"));
  nodes.node(2).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGKILL));
  CHECK(nodes.node(1).wait() == ExitStatus::exited(0));
  CHECK(nodes.node(2).wait() == ExitStatus::killed(SIGTERM));
  CHECK_THAT(nodes.node(2).err(), ContainsSubstring("leaving the job as soon as the next round"));
}

TEST_CASE("a second signal to the coordinator's node does not wait for the nodes that go on", "[nodes]") {
  NodeJob nodes;
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  for (std::size_t i = 0; i < 2; ++i)
    nodes.add(script({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:2",
                      "--shutdown-timeout=30", i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0"},
                     "trap 'echo saving; until [ -e " + done +
                         " ]; do sleep 0.1; done; exit 0' TERM; "
                         "[ $WORLD_SIZE = 1 ] && exit 0; echo ready; while :; do sleep 0.1; done"));
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("ready"));
  nodes.node(0).send_signal(SIGTERM);
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("saving"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGTERM));
  write_file_atomic(done, "");
  CHECK(nodes.node(1).wait() == ExitStatus::exited(0));
}

TEST_CASE("a job keeps its id when another node takes the coordinator's place", "[nodes]") {
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  for (const char* host : {"1", "0"})
    nodes.add(script({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=1:2", "--last-call=600",
                      "--node-timeout=600", std::string("--rdzv-conf=is_host=") + host},
                     "echo id=$DDPRUN_SHARED_JOB_ID.; until [ -e " + done + " ]; do sleep 0.05; done"));
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("id="));
  nodes.node(0).send_signal(SIGTERM);
  REQUIRE(nodes.node(1).wait_for_output("id=", 2));
  write_file_atomic(done, "");
  nodes.wait();
  const std::string id = nodes.node(0).out();
  CHECK(id.size() > 20);
  CHECK(nodes.node(1).out() == id + id);
}

TEST_CASE("a second signal does not wait for another node's workers", "[nodes]") {
  NodeJob nodes;
  for (const char* seconds : {"20", "5"})
    nodes.start_script({"--nnodes=2", "--shutdown-timeout=20"},
                       std::string("trap 'echo saving; sleep ") + seconds +
                           "; exit 0' TERM; echo ready; while :; do sleep 0.1; done");
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("ready"));
  nodes.node(0).send_signal(SIGTERM);
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("saving"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait(std::chrono::seconds(3)) == ExitStatus::killed(SIGTERM));
  CHECK(nodes.node(1).wait() == ExitStatus::exited(128 + SIGTERM));
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
