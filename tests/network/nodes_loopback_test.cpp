// Jobs over several nodes that are addresses of one host: for machines where no hosts can be made.
#include <csignal>

#include "tests/integration/job.h"
#include "tests/network/sockets.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

/// The flags of node 0 or 1, of 127.0.0.2 and 127.0.0.3.
std::vector<std::string> node_flags(int node, int port) {
  return {"--nnodes=2", "--node-rank=" + std::to_string(node), "--master-addr=127.0.0.2",
          "--master-port=" + std::to_string(port), "--local-addr=127.0.0." + std::to_string(2 + node)};
}

int free_port() { return port_of(listen_at("127.0.0.2")); }

}  // namespace

TEST_CASE("two nodes on two addresses of one host work together", "[nodes]") {
  const int port = free_port();
  Child second(job(node_flags(1, port), {"meet"})), first(job(node_flags(0, port), {"meet"}));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK(count_of("met 0 of 2, round 0 at 127.0.0.2 ", first.out()) == 1);
  CHECK(count_of("met 1 of 2, round 0 at 127.0.0.2 ", second.out()) == 1);
  for (const Child* node : {&first, &second}) check_nothing_left(*node);
}

TEST_CASE("two nodes on two addresses of one host fail together", "[nodes]") {
  const int port = free_port(), failing = GENERATE(0, 1);
  const std::vector<std::string> actions = {"meet",  "--rank", std::to_string(failing), "exit", "7",
                                            "--all", "pause"};
  Child second(job(node_flags(1, port), actions)), first(job(node_flags(0, port), actions));
  CHECK(first.wait() == ExitStatus::exited(7));
  CHECK(second.wait() == ExitStatus::exited(7));
  CHECK_THAT((failing == 0 ? second : first).err(),
             ContainsSubstring("rank " + std::to_string(failing)) && ContainsSubstring("exit code 7"));
  for (const Child* node : {&first, &second}) check_nothing_left(*node);
}

TEST_CASE("a node on one host that is killed ends the other", "[nodes]") {
  const int port = free_port();
  Child first(job(node_flags(0, port), {"meet", "pause"})),
      second(job(node_flags(1, port), {"meet", "pause"}));
  REQUIRE(first.wait_for_output("met 0"));
  REQUIRE(second.wait_for_output("met 1"));
  const bool kill_first = GENERATE(true, false);
  Child &victim = kill_first ? first : second, &other = kill_first ? second : first;
  victim.send_signal(SIGKILL);
  CHECK(other.wait() == ExitStatus::exited(125));
  CHECK(victim.wait() == ExitStatus::killed(SIGKILL));
  for (const Child* node : {&first, &second}) CHECK(node->nothing_left());
}
