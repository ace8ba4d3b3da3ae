// Several nodes, each a ddprun on this host: what they agree on, and how they end.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/integration/node_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

using Ends = std::vector<ExitStatus>;

Ends all(std::size_t nodes, const ExitStatus& status) { return Ends(nodes, status); }

/// Its coordinator listens at its port or, without another_job, the stranger that is returned.
std::unique_ptr<Child> occupy(NodeJob& other, bool another_job) {
  if (another_job) {
    other.start({"--nnodes=2"}, {"ready"});
    REQUIRE(wait_until([&] { return count_of("waiting for nodes", other.node(0).err()) == 1; }));
    return nullptr;
  }
  auto stranger = std::make_unique<Child>(
      Command{{"python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", other.port}});
  REQUIRE(stranger->wait_for_output("Serving HTTP"));
  return stranger;
}

/// The environments that stub_worker's "dump" has written.
std::vector<nlohmann::json> environments(const std::string& out) {
  std::vector<nlohmann::json> list;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) list.push_back(nlohmann::json::parse(line)["env"]);
  return list;
}

TEST_CASE("two nodes agree on ranks, sizes and one master", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--role=actor"}, {"dump"});
  nodes.start({"--nnodes=2", "--nproc-per-node=3", "--node-rank=0", "--role=learner"}, {"dump"});
  CHECK(nodes.wait() == all(2, ExitStatus::exited(0)));
  std::set<std::string> ranks, masters;
  for (const std::size_t node : {0U, 1U})
    for (const auto& env : environments(nodes.node(node).out())) {
      ranks.insert(env["RANK"]);
      masters.insert(env["MASTER_ADDR"].get<std::string>() + ":" + env["MASTER_PORT"].get<std::string>());
      CHECK(env["WORLD_SIZE"] == "5");
      CHECK(env["GROUP_WORLD_SIZE"] == "2");
      CHECK(env["GROUP_RANK"] == (node == 1 ? "0" : "1"));
      CHECK(env["LOCAL_WORLD_SIZE"] == (node == 1 ? "3" : "2"));
      CHECK(env["ROLE_RANK"] == env["LOCAL_RANK"]);
      CHECK(env["ROLE_WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"]);
      CHECK(env["TORCHELASTIC_RUN_ID"] == "the-job");
    }
  CHECK(ranks == std::set<std::string>{"0", "1", "2", "3", "4"});
  CHECK(masters.size() == 1);
}

TEST_CASE("rank 0 of another node is reached at the master's address and port", "[nodes]") {
  NodeJob nodes;
  const std::vector<std::string> actions = {"--rank", "0", "bind-master-port", "--rank", "1", "connect"};
  nodes.start({"--nnodes=2", "--node-rank=0"}, actions);
  nodes.start({"--nnodes=2", "--node-rank=1"}, actions);
  CHECK(nodes.wait() == all(2, ExitStatus::exited(0)));
}

TEST_CASE("of several ddpruns on the endpoint's host one becomes the coordinator", "[nodes]") {
  const std::string endpoint = "localhost:" + free_port();
  std::vector<std::unique_ptr<Child>> nodes;
  for (int i = 0; i < 5; ++i)
    nodes.push_back(std::make_unique<Child>(job({"--nnodes=5", "--rdzv-endpoint=" + endpoint}, {"ready"})));
  std::string out;
  for (const auto& node : nodes) {
    CHECK(node->wait() == ExitStatus::exited(0));
    out += node->out();
  }
  for (const char* rank : {"0", "1", "2", "3", "4"})
    CHECK(count_of(std::string("ready ") + rank + " ", out) == 1);
}

TEST_CASE("torchrun's static flags are another way in", "[nodes]") {
  const std::string port = free_port();
  const auto flags = [&](const std::string& rank) {
    return std::vector<std::string>{"--nnodes=2", "--node_rank=" + rank, "--master_addr=127.0.0.1",
                                    "--master_port=" + port};
  };
  Child second(job(flags("1"), {"ready"}));
  Child first(job(flags("0"), {"ready"}));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK_THAT(first.out(), ContainsSubstring("ready 0 "));
  CHECK_THAT(second.out(), ContainsSubstring("ready 1 "));
}

TEST_CASE("a static port is the workers', also after a restart", "[nodes]") {
  const std::string port = free_port();
  const auto node = [&](const std::string& rank) {
    return script({"--nnodes=2", "--node-rank=" + rank, "--master-addr=127.0.0.1", "--master-port=" + port,
                   "--max-restarts=1"},
                  "[ $MASTER_ADDR:$MASTER_PORT = 127.0.0.1:" + port +
                      " ] || exit 9; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 5; exec " STUB_WORKER_PROGRAM
                      " --rank 0 bind-master-port --rank 1 connect");
  };
  Child second(node("1")), first(node("0"));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK_THAT(first.out(), ContainsSubstring("accepted"));
}

TEST_CASE("a master's address of no interface, as behind NAT, is listened for on all", "[nodes]") {
  const auto node = [port = "--master-port=" + free_port()](const std::string& rank,
                                                            const std::string& address) {
    return script({"--nnodes=2", "--node-rank=" + rank, "--master-addr=" + address, port},
                  "echo $MASTER_ADDR");
  };
  Child first(node("0", "192.0.2.1")), second(node("1", "127.0.0.1"));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK(first.out() == "192.0.2.1\n");
}

TEST_CASE("one node's alias stays as it was written", "[nodes]") {
  const Finished job(script({"--master-addr=0x7f000001"}, "echo $MASTER_ADDR"));
  CHECK(job.status == ExitStatus::exited(0));
  CHECK(job.out == "0x7f000001\n");
}

TEST_CASE("a second job at the endpoint of a full one is refused", "[nodes]") {
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + free_port();
  const Command command = script({"--nnodes=2", endpoint}, "echo started; exec sleep 30");
  Child first(command), second(command);
  for (Child* node : {&first, &second}) REQUIRE(node->wait_for_output("started"));
  Child other(script({"--nnodes=2", endpoint}, "exit 7")), same(command);
  CHECK(other.wait() == ExitStatus::exited(125));
  CHECK_THAT(other.err(),
             ContainsSubstring("runs 'sh -c 'exit 7'', the coordinator's job runs 'sh -c 'echo"));
  CHECK(same.wait() == ExitStatus::exited(125));
  CHECK_THAT(same.err(), ContainsSubstring("comes too late: the job 'none', which runs 'sh -c"));
  first.send_signal(SIGTERM);
  second.wait();
  first.wait();
}

TEST_CASE("a failure on one node ends all nodes with its code", "[nodes]") {
  NodeJob nodes;
  const std::vector<std::string> actions = {"--rank", "1", "error", "lost my way",
                                            "exit",   "7", "--all", "pause"};
  nodes.start({"--nnodes=3", "--node-rank=0"}, actions);
  nodes.start({"--nnodes=3", "--node-rank=1"}, actions);
  nodes.start({"--nnodes=3", "--node-rank=2"}, actions);
  CHECK(nodes.wait() == all(3, ExitStatus::exited(7)));
  CHECK_THAT(nodes.node(1).err(), ContainsSubstring("Root Cause"));
  for (const std::size_t other : {0U, 2U}) {
    CHECK_THAT(nodes.node(other).err(), ContainsSubstring("rank 1 failed: exit code 7: lost my way"));
    CHECK(count_of("rank 1 failed", nodes.node(other).err()) == 1);
    CHECK(count_of("Root Cause", nodes.node(other).err()) == 0);
  }
}

TEST_CASE("all nodes start again when one fails, with a new port", "[nodes]") {
  const TempDir folder;
  const std::string file = folder.path() / "ports";
  const std::string text = "echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >> " + file +
                           "; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT != 0 ] || exit 3";
  NodeJob nodes;
  for (const char* rank : {"0", "1"})
    nodes.start_script({"--nnodes=2", "--max-restarts=1", std::string("--node-rank=") + rank}, text);
  CHECK(nodes.wait() == all(2, ExitStatus::exited(0)));
  std::set<std::string> first, second;
  std::istringstream lines(read_file(file));
  for (std::string attempt, port; lines >> attempt >> port;) (attempt == "0" ? first : second).insert(port);
  CHECK(first.size() == 1);
  CHECK(second.size() == 1);
  CHECK(first != second);
}

TEST_CASE("a node that is done waits for the others", "[nodes]") {
  NodeJob nodes;
  const std::vector<std::string> actions = {"ready", "--rank", "1", "await"};
  nodes.start({"--nnodes=2", "--node-rank=0"}, actions);
  nodes.start({"--nnodes=2", "--node-rank=1"}, actions);
  REQUIRE(nodes.node(0).wait_for_output("ready "));
  REQUIRE(nodes.node(1).wait_for_output("ready "));
  nodes.node(1).send_signal(SIGUSR1);
  CHECK(nodes.wait() == all(2, ExitStatus::exited(0)));
}

TEST_CASE("a signal to any node ends a job of a fixed size", "[nodes]") {
  const auto signalled = GENERATE(std::size_t{0}, std::size_t{1});
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(signalled).send_signal(SIGINT);
  const Ends ends = nodes.wait();
  CHECK(ends[signalled] == ExitStatus::killed(SIGINT));
  CHECK(ends[1 - signalled] == ExitStatus::exited(130));
}

TEST_CASE("workers of all nodes get Ctrl-C once, wherever it comes first", "[nodes]") {
  const auto first = GENERATE(std::size_t{0}, std::size_t{1});
  NodeJob nodes;
  const std::string saves =
      "trap 'echo got INT; sleep 1' INT; trap 'echo got TERM' TERM; echo ready; "
      "n=0; while [ $n -lt 20 ]; do sleep 0.1; n=$((n + 1)); done";
  for (const char* rank : {"--node-rank=0", "--node-rank=1"})
    nodes.start_script({"--nnodes=2", rank, "--shutdown-timeout=60"}, saves);
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready"));
  nodes.node(first).send_signal(SIGINT);
  REQUIRE(nodes.node(1 - first).wait_for_output("got"));  // the other node has told it
  nodes.node(1 - first).send_signal(SIGINT);
  nodes.wait();
  for (const std::size_t node : {0U, 1U}) CHECK(nodes.node(node).out() == "ready\ngot INT\n");
}

TEST_CASE("no ddprun ends by a signal while another node's workers save", "[nodes]") {
  // An MPI launcher kills all tasks as soon as one has ended by a signal.
  const auto slow = GENERATE(std::size_t{0}, std::size_t{1});
  const bool both = GENERATE(true, false);
  CAPTURE(slow, both);
  NodeJob nodes;
  const TempDir dir;
  const auto saved = dir.path() / "saved";
  const auto saves = [](const std::string& how) {
    return "trap '" + how + "; exit 0' INT; echo ready; while :; do sleep 0.05; done";
  };
  for (const std::size_t node : {0U, 1U})
    nodes.start_script({"--nnodes=2", "--node-rank=" + std::to_string(node), "--shutdown-timeout=60"},
                       saves(node == slow ? "sleep 1; touch " + saved.string() : ":"));
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready"));
  nodes.node(1 - slow).send_signal(SIGINT);
  if (both) nodes.node(slow).send_signal(SIGINT);
  CHECK(nodes.node(1 - slow).wait() == ExitStatus::killed(SIGINT));
  CHECK(std::filesystem::exists(saved));
  const ExitStatus end = nodes.node(slow).wait();
  CHECK((end == ExitStatus::exited(130) || (both && end == ExitStatus::killed(SIGINT))));
}

TEST_CASE("a node that waits for another one's save ends at its own second signal, not at the first",
          "[nodes]") {
  const auto slow = GENERATE(std::size_t{0}, std::size_t{1});
  CAPTURE(slow);
  NodeJob nodes;
  const TempDir dir;
  const auto go = (dir.path() / "go").string();
  for (const std::size_t node : {0U, 1U})
    nodes.start_script({"--nnodes=2", "--node-rank=" + std::to_string(node), "--shutdown-timeout=60"},
                       "trap '" +
                           (node == slow ? "until [ -e " + go + " ]; do sleep 0.05; done" : "echo left") +
                           "; exit 0' INT; echo ready; while :; do sleep 0.05; done");
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready"));
  Child& waiting = nodes.node(1 - slow);
  nodes.node(slow).send_signal(SIGINT);
  REQUIRE(waiting.wait_for_output("left"));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // its worker has ended
  waiting.send_signal(SIGINT);
  REQUIRE(wait_until([&] { return count_of("a second signal ends the wait", waiting.err()) == 1; }));
  if (GENERATE(true, false)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    waiting.send_signal(SIGINT);
    CHECK(waiting.wait() == ExitStatus::exited(130));  // while the other one still saves
  }
  write_file_atomic(go, "");
  for (const ExitStatus& end : nodes.wait())
    CHECK((end == ExitStatus::exited(130) || end == ExitStatus::killed(SIGINT)));
}

TEST_CASE("a node ends by a signal only after the others have had time to write their records", "[nodes]") {
  // mpiexec kills the others at once then.
  NodeJob nodes;
  const TempDir dir;
  const auto record = dir.path() / "result.json";
  for (const std::size_t node : {0U, 1U})
    nodes.start({"--nnodes=2", "--node-rank=" + std::to_string(node),
                 "--result-json=" + (node == 1 ? record.string() : record.string() + ".0")},
                {"ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready"));
  nodes.node(1).send_signal(SIGTERM);
  CHECK(nodes.node(1).wait() == ExitStatus::killed(SIGTERM));
  const auto lingered =
      std::filesystem::file_time_type::clock::now() - std::filesystem::last_write_time(record);
  CHECK(lingered >= std::chrono::milliseconds(400));
  CHECK(nodes.wait()[0] == ExitStatus::exited(143));
}

TEST_CASE("the loss of the coordinator ends every node with 125", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(0).send_signal(SIGKILL);
  CHECK(nodes.node(1).wait() == ExitStatus::exited(125));
  CHECK_THAT(nodes.node(1).err(), ContainsSubstring("lost the coordinator at 127.0.0.1:" + nodes.port));
  CHECK(nodes.node(0).nothing_left());
  check_nothing_left(nodes.node(1));
}

TEST_CASE("a job goes on without the node of its coordinator if it has another endpoint", "[nodes]") {
  const std::string kind = GENERATE("elastic", "spare", "restarts");
  CAPTURE(kind);
  NodeJob nodes;
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + free_port();
  std::vector<std::string> flags = {"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--last-call=1"};
  if (kind == "elastic")
    flags.push_back("--nnodes=2:3");
  else if (kind == "spare")
    flags.insert(flags.end(), {"--nnodes=3", "--spares=1"});
  else
    flags.insert(flags.end(), {"--nnodes=3", "--max-restarts=1"});
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  const auto start = [&] { nodes.add(job(flags, {"meet", "wait-for-file", done})); };
  start();
  REQUIRE(wait_until([&] { return count_of("waiting for nodes: 1", nodes.node(0).err()) > 0; }));
  for (int i = 0; i < 2; ++i) start();
  for (const std::size_t node : {0U, 1U, 2U}) REQUIRE(nodes.node(node).wait_for_output("round 0"));
  if (kind == "spare") {
    start();
    REQUIRE(wait_until([&] { return count_of("standing by", nodes.node(3).err()) > 0; }));
  }
  nodes.node(0).send_signal(SIGKILL);
  if (kind == "restarts") {
    // The lost node is back after another took over; sooner, it has the coordinator again, and the others
    // come to it.
    REQUIRE(wait_until([&] {
      return count_of("this node has the coordinator now", nodes.node(1).err() + nodes.node(2).err()) > 0;
    }));
    start();
  }
  std::string out;
  REQUIRE(wait_until([&] {
    out.clear();
    for (std::size_t i = 0; i < nodes.size(); ++i) out += nodes.node(i).out();
    if (kind == "elastic") return count_of(" of 2, round 0 at", out) == 2;
    return kind == "spare" ? count_of(" of 3, round 0 at", out) == 6
                           : count_of(" of 3, round 1 at", out) == 3;
  }));
  write_file_atomic(done, "");
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGKILL));
  std::string err;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    CHECK(nodes.node(i).wait() == ExitStatus::exited(0));
    err += nodes.node(i).err();
  }
  CHECK(count_of("this node has the coordinator now", err) == 1);
}

TEST_CASE("a stranger or another job at the next endpoint does not end a job that lost its coordinator",
          "[nodes]") {
  const bool another_job = GENERATE(true, false);
  CAPTURE(another_job);
  NodeJob nodes, other;
  const std::string endpoints =
      "127.0.0.1:" + nodes.port + ",127.0.0.1:" + other.port + ",127.0.0.1:" + free_port();
  const std::vector<std::string> flags = {"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=2:3",
                                          "--last-call=1", "--node-timeout=2"};
  const TempDir dir;
  const auto done = (dir.path() / "done").string();
  for (int i = 0; i < 3; ++i) {
    nodes.add(job(flags, {"meet", "wait-for-file", done}));
    if (i == 0)
      REQUIRE(wait_until([&] { return count_of("waiting for nodes: 1", nodes.node(0).err()) > 0; }));
  }
  for (const std::size_t node : {0U, 1U, 2U}) REQUIRE(nodes.node(node).wait_for_output("round 0"));
  const auto stranger = occupy(other, another_job);
  nodes.node(0).send_signal(SIGKILL);
  for (const std::size_t node : {1U, 2U}) REQUIRE(nodes.node(node).wait_for_output(" of 2, round 0 at"));
  write_file_atomic(done, "");
  std::string err;
  for (const std::size_t node : {1U, 2U}) {
    CHECK(nodes.node(node).wait() == ExitStatus::exited(0));
    err += nodes.node(node).err();
  }
  CHECK_THAT(err, ContainsSubstring("127.0.0.1:" + other.port + " does not have this job's coordinator"));
  if (another_job) other.node(0).send_signal(SIGTERM);
}

TEST_CASE("a stranger or another job at the next endpoint does not keep a job from starting", "[nodes]") {
  const bool another_job = GENERATE(true, false);
  CAPTURE(another_job);
  NodeJob nodes, other;
  const auto stranger = occupy(other, another_job);
  const std::string endpoints = "127.0.0.1:" + nodes.port + ",127.0.0.1:" + other.port;
  for (int i = 0; i < 2; ++i)
    nodes.add(job({"--rdzv-endpoint=" + endpoints, "--rdzv-id=job", "--nnodes=2"}, {"meet"}));
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
  for (const std::size_t node : {0U, 1U})
    CHECK_THAT(nodes.node(node).err(),
               ContainsSubstring("127.0.0.1:" + other.port + " does not have this job's coordinator"));
  // At the only endpoint it is an error, and so is this job's coordinator that refuses the node.
  NodeJob late;
  late.add(job({"--rdzv-endpoint=127.0.0.1:" + other.port, "--rdzv-id=job", "--nnodes=2"}, {"meet"}));
  if (another_job)
    late.add(job({"--rdzv-endpoint=127.0.0.1:" + late.port + ",127.0.0.1:" + other.port, "--rdzv-id=the-job",
                  "--nnodes=3"},
                 {"meet"}));
  CHECK(late.wait() == std::vector(late.size(), ExitStatus::exited(125)));
  if (another_job) other.node(0).send_signal(SIGTERM);
}

TEST_CASE("several endpoints are for a job whose nodes join", "[nodes]") {
  NodeJob nodes;
  nodes.add(
      job({"--nnodes=2", "--node-rank=0", "--rdzv-backend=static", "--rdzv-endpoint=localhost:1,localhost:2"},
          {"ready"}));
  CHECK(nodes.node(0).wait() == ExitStatus::exited(2));
  CHECK_THAT(nodes.node(0).err(),
             ContainsSubstring("--rdzv-endpoint: expected one endpoint, unless --rdzv-backend is c10d"));
}

TEST_CASE("a fixed job ends when a node is lost", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(1).send_signal(SIGKILL);
  CHECK(nodes.node(0).wait() == ExitStatus::exited(125));
  CHECK_THAT(nodes.node(0).err(), ContainsSubstring("was lost: the connection ended"));
  CHECK(nodes.node(1).nothing_left());
}

TEST_CASE("an elastic job goes on without a node that is lost", "[nodes]") {
  const auto signal = GENERATE(SIGKILL, SIGTERM);
  NodeJob nodes;
  const std::vector<std::string> actions = {"ready", "await", "exit", "0"};
  nodes.start({"--nnodes=1:2", "--last-call=600"}, actions);
  nodes.start({"--nnodes=1:2"}, actions);
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(1).send_signal(signal);
  REQUIRE(nodes.node(0).wait_for_output("ready ", 2));
  nodes.node(0).send_signal(SIGUSR1);
  CHECK(nodes.node(0).wait() == ExitStatus::exited(0));
  CHECK(nodes.node(1).wait() == ExitStatus::killed(signal));
  CHECK_THAT(nodes.node(0).err(), ContainsSubstring("ending this node's workers"));
  for (const std::size_t node : {0U, 1U}) CHECK(nodes.node(node).nothing_left());
}

TEST_CASE("a late node joins a job that has room, and waits for one that has not", "[nodes]") {
  NodeJob nodes;
  const std::vector<std::string> actions = {"ready", "await", "exit", "0"};
  nodes.start({"--nnodes=1:2", "--last-call=0"}, actions);
  REQUIRE(nodes.node(0).wait_for_output("ready 0 "));
  nodes.start({"--nnodes=1:2"}, actions);
  REQUIRE(nodes.node(1).wait_for_output("ready "));  // the first node's workers were started again for it
  REQUIRE(nodes.node(0).wait_for_output("ready ", 2));
  nodes.start({"--nnodes=1:2"}, actions);
  REQUIRE(wait_until([&] { return count_of("standing by", nodes.node(2).err()) == 1; }));
  nodes.node(1).send_signal(SIGKILL);
  REQUIRE(nodes.node(2).wait_for_output("ready "));
  REQUIRE(nodes.node(0).wait_for_output("ready ", 3));
  nodes.node(0).send_signal(SIGUSR1);
  nodes.node(2).send_signal(SIGUSR1);
  CHECK(nodes.node(0).wait() == ExitStatus::exited(0));
  CHECK(nodes.node(2).wait() == ExitStatus::exited(0));
}

TEST_CASE("nodes that come late come together, and nobody has failed", "[nodes]") {
  NodeJob nodes;
  const std::string text = "echo runs $TORCHELASTIC_RESTART_COUNT of $GROUP_WORLD_SIZE; exec sleep 300";
  nodes.start_script({"--nnodes=1:4", "--last-call=3"}, text);
  REQUIRE(nodes.node(0).wait_for_output("runs 0 of 1\n"));
  for (int late = 0; late < 2; ++late) nodes.start_script({"--nnodes=1:4"}, text);
  for (const std::size_t node : {1U, 2U}) REQUIRE(nodes.node(node).wait_for_output("runs "));
  CHECK(nodes.node(0).wait_for_output("runs 0 of 3\n", 1, std::chrono::seconds(10)));
  CHECK(nodes.node(0).out() == "runs 0 of 1\nruns 0 of 3\n");
  for (const std::size_t node : {2U, 1U, 0U}) nodes.node(node).send_signal(SIGTERM);
  // The first node's end may reach another before that one's own signal does: it then exits with 143.
  for (const ExitStatus& status : nodes.wait()) CHECK(to_exit_code(status) == 128 + SIGTERM);
}

TEST_CASE("nodes that do not fit are refused, and both sides are named", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes: 1 of 2", nodes.node(0).err()) == 1; }));
  struct Wrong {
    std::vector<std::string> flags;
    std::string text;
  };
  for (const Wrong& wrong :
       {Wrong{{"--nnodes=3", "--node-rank=1"}, "--nnodes=3, the coordinator has --nnodes=2"},
        Wrong{{"--nnodes=2", "--node-rank=0"}, "node rank 0 is wanted by node"},
        Wrong{{"--nnodes=2", "--node-rank=1", "--rdzv-id=other"},
              "run id 'other', the coordinator has 'the-job'"}}) {
    Child& refused = nodes.start(wrong.flags, {"ready"});
    CHECK(refused.wait() == ExitStatus::exited(125));
    CHECK_THAT(refused.err(), ContainsSubstring(wrong.text));
    REQUIRE(wait_until([&] { return count_of(wrong.text, nodes.node(0).err()) == 1; }));
  }
  Child& right = nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
  CHECK(right.wait() == ExitStatus::exited(0));
  CHECK(nodes.node(0).wait() == ExitStatus::exited(0));
}

TEST_CASE("a node that never comes ends the wait, and those that came are named", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=3", "--node-rank=0", "--join-timeout=4"}, {"ready"});
  nodes.start({"--nnodes=3", "--node-rank=2"}, {"ready"});
  CHECK(nodes.wait() == all(2, ExitStatus::exited(125)));
  for (const std::size_t node : {0U, 1U}) {
    CHECK_THAT(nodes.node(node).err(),
               ContainsSubstring("only 2 of 3 nodes joined within 4 s (--join-timeout)"));
    CHECK_THAT(nodes.node(node).err(), ContainsSubstring("missing: node rank 1"));
  }
}

TEST_CASE("a signal ends every kind of waiting at once", "[nodes]") {
  NodeJob nodes;
  SECTION("for other nodes") {
    nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready"});
    REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) == 1; }));
  }
  SECTION("for the coordinator") {
    nodes.start({"--nnodes=2", "--rdzv-conf=is_host=0"}, {"ready"});
    REQUIRE(
        wait_until([&] { return count_of("trying to reach the coordinator", nodes.node(0).err()) == 1; }));
  }
  SECTION("for a name") {
    Child named(job({"--nnodes=2", "--rdzv-endpoint=no-such-host.invalid:1234"}, {"ready"}));
    ::usleep(100'000);
    named.send_signal(SIGINT);
    CHECK(named.wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGINT));
    return;
  }
  nodes.node(0).send_signal(SIGINT);
  CHECK(nodes.node(0).wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGINT));
  check_nothing_left(nodes.node(0));
}

TEST_CASE("a port that another program has is named with its owner", "[nodes]") {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(fd, 1) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const std::string owner = "by process " + std::to_string(::getpid());
  const Finished told(
      job({"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=" + port}, {}));
  CHECK(told.status == ExitStatus::exited(125));
  CHECK_THAT(told.err, ContainsSubstring(owner));
  const Finished found(job({"--nnodes=2", "--rdzv-endpoint=127.0.0.1:" + port}, {}));
  CHECK(found.status == ExitStatus::exited(125));
  CHECK_THAT(found.err, ContainsSubstring(owner));
  ::close(fd);
}

TEST_CASE("strangers at the coordinator's port change nothing", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) == 1; }));
  std::vector<int> strangers;
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff')}) {
    const int fd = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(std::stoi(nodes.port)));
    REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
  CHECK(nodes.wait() == all(2, ExitStatus::exited(0)));
  for (const int fd : strangers) ::close(fd);
}

TEST_CASE("a token keeps out who has another one or none", "[nodes]") {
  NodeJob nodes;
  nodes.token = "a secret";
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"dump"});
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) == 1; }));
  for (const char* other : {"another secret", ""}) {
    nodes.token = other;
    Child& stranger = nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
    CHECK(stranger.wait() == ExitStatus::exited(125));
    CHECK_THAT(stranger.err(), ContainsSubstring("token"));
  }
  nodes.token = "a secret";
  Child& right = nodes.start({"--nnodes=2", "--node-rank=1"}, {"ready"});
  CHECK(right.wait() == ExitStatus::exited(0));
  CHECK(nodes.node(0).wait() == ExitStatus::exited(0));
  CHECK(count_of("a secret", nodes.node(0).out()) == 0);  // workers do not get it
}

TEST_CASE("a node that cannot start its workers ends the job with its code", "[nodes]") {
  NodeJob nodes;
  const TempDir folder;
  const auto program = folder.path() / "program";
  write_file_atomic(program, "#!/no/such/interpreter\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.add(ddprun_command(nodes.flags({"--nnodes=2", "--node-rank=1", "--no-python", program.string()})));
  CHECK(nodes.wait() == all(2, ExitStatus::exited(127)));
  CHECK_THAT(nodes.node(0).err(), ContainsSubstring(program.string()));
}

TEST_CASE("a node whose log folder cannot be made says so at once, and does not join", "[nodes]") {
  NodeJob nodes;
  Child& alone = nodes.add(ddprun_command(nodes.flags({"--nnodes=2", "--log-dir=/dev/null/x", "true"})));
  CHECK(alone.wait() == ExitStatus::exited(2));
  CHECK_THAT(alone.err(), ContainsSubstring("--log-dir: /dev/null: cannot open the log folder"));
}

TEST_CASE("the coordinator's node does not wait for workers elsewhere that are slow to end", "[nodes]") {
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.start({"--nnodes=2", "--node-rank=1", "--shutdown-timeout=600"}, {"ignore-term", "ready", "pause"});
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  nodes.node(0).send_signal(SIGINT);
  CHECK(nodes.node(0).wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGINT));
  nodes.node(1).send_signal(SIGINT);
  nodes.node(1).send_signal(SIGTERM);  // of another kind: two that are alike may arrive as one
  CHECK(nodes.node(1).wait() == ExitStatus::exited(130));
  for (const std::size_t node : {0U, 1U}) check_nothing_left(nodes.node(node));
}

TEST_CASE("a time limit on one node ends all with 124", "[nodes]") {
  const TempDir folder;  // for the stacks
  NodeJob nodes;
  nodes.start({"--nnodes=2", "--node-rank=0"}, {"ready", "pause"});
  nodes.start({"--nnodes=2", "--node-rank=1", "--timeout=1", "--log-dir", folder.path()}, {"ready", "pause"});
  CHECK(nodes.wait() == all(2, ExitStatus::exited(124)));
}

TEST_CASE("all nodes exit with the code of the worker that is named, not of the first exit",
          "[nodes][root_cause]") {
  const TempDir folder;
  NodeJob nodes;
  const std::string script_text =
      "cd " + folder.path().string() +
      "; if [ $RANK = 1 ]; then printf '{\"message\": \"E: mine\"}' > $TORCHELASTIC_ERROR_FILE; touch told; "
      "until [ -s pid ] && ! kill -0 $(cat pid); do sleep 0.01; done; exit 5; fi; "
      "until [ -e told ]; do sleep 0.01; done; [ $RANK = 0 ] || exec sleep 600; echo $$ > pid; exit 4";
  for (int node = 0; node < 2; ++node)
    nodes.start_script({"--nnodes=2", "--nproc-per-node=2", "--node-rank=" + std::to_string(node)},
                       script_text);
  CHECK(nodes.wait() == all(2, ExitStatus::exited(5)));
  CHECK_THAT(nodes.node(0).err(), ContainsSubstring("rank      : 1 "));
  CHECK_THAT(nodes.node(1).err(), ContainsSubstring("rank 1 failed: exit code 5: E: mine"));
}

}  // namespace
