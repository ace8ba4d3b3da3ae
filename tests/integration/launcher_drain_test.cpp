// ddpctl drain: a node leaves a job, and the others go on.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include "tests/integration/node_job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The nodes of a job that ddpctl sees. A worker runs until the file "go" is there; when it is asked to end,
/// it saves until "saved" is there.
struct DrainedJob {
  explicit DrainedJob(std::vector<std::string> flags) : flags_(std::move(flags)) {
    flags_.insert(flags_.end(), {"--nproc-per-node=1", "--node-timeout=20"});
  }
  /// Starts another one, and waits until it has written this.
  Child& start(const std::string& line, const std::vector<std::string>& actions = {}) {
    const std::string at = folder.path();
    auto own = flags_;
    own.insert(own.end(), {"--events-json=" + at + "/events" + std::to_string(nodes.size()),
                           "--result-json=" + at + "/result" + std::to_string(nodes.size())});
    const std::string text =
        "cd " + at +
        "; trap 'echo saving; until [ -e saved ]; do sleep 0.05; done; echo saved $RANK; "
        "exit 3' TERM; echo begin $RANK of $WORLD_SIZE; until [ -e go ]; do sleep 0.05; done";
    const auto all = nodes.flags(own);
    Command command = actions.empty() ? script(all, text) : job(all, actions);
    command.env["DDPRUN_CONTROL_DIR"] = at + "/ctl";
    Child& node = nodes.add(std::move(command));
    if (line.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it has joined, silently
    REQUIRE((line.empty() || wait_until([&] { return count_of(line, node.out() + node.err()) > 0; })));
    return node;
  }
  Finished ctl(std::size_t node, std::vector<std::string> words) {
    words.insert(words.begin(), DDPCTL_PROGRAM);
    words.push_back(std::to_string(nodes.node(node).pid()));
    Command command{std::move(words)};
    command.env["DDPRUN_CONTROL_DIR"] = (folder.path() / "ctl").string();
    return Finished(command);
  }
  bool says(std::size_t node, const char* text) {
    return wait_until([&] { return count_of(text, nodes.node(node).err()) > 0; });
  }
  void touch(const char* name) const { std::ofstream(folder.path() / name).close(); }
  json result(std::size_t node) const {
    return json::parse(read_file(folder.path() / ("result" + std::to_string(node))));
  }
  std::string events(std::size_t node) const {
    return read_file(folder.path() / ("events" + std::to_string(node)));
  }

  TempDir folder;
  NodeJob nodes;

 private:
  std::vector<std::string> flags_;
};

TEST_CASE("under --recover=rank a spare takes a drained node's ranks, and nobody else restarts", "[drain]") {
  DrainedJob job({"--nnodes=3", "--spares=2", "--recover=rank", "--max-restarts=1"});
  const std::vector<std::string> actions = {"recovers", "true",           "ready", "--old",
                                            "meet",     "wait-for-round", "--all", "meet"};
  job.start("1 of 3 joined", actions);
  job.start("2 of 3 joined", actions);
  job.start("ready 2 ", actions);
  for (int spare = 0; spare < 2; ++spare) job.start("standing by", actions);
  REQUIRE(job.nodes.node(0).wait_for_output("at"));
  REQUIRE(wait_until(
      [&] { return count_of(", round 0 at", job.nodes.node(1).out() + job.nodes.node(2).out()) == 2; }));
  const Finished drain = job.ctl(GENERATE(0U, 1U, 3U), {"drain", "1"});  // asked on any node
  CHECK(drain.status == ExitStatus::exited(0));
  CHECK_THAT(drain.out,
             ContainsSubstring(" is drained; node ") &&
                 ContainsSubstring(" takes its ranks, and the other workers go on if their program can\n"));
  CHECK(job.nodes.node(1).wait() == ExitStatus::exited(0));
  const auto ends = job.nodes.wait();
  CHECK(ends == std::vector<ExitStatus>(5, ExitStatus::exited(0)));
  CHECK_THAT(job.nodes.node(1).err(),
             ContainsSubstring(" is drained: it has left the job, which goes on without it\n"));
  CHECK(count_of("ready ", job.nodes.node(0).out() + job.nodes.node(2).out()) == 2);
  CHECK(count_of("ready 1 ", job.nodes.node(3).out()) == 1);
  CHECK(job.nodes.node(4).out().empty());
  for (const std::size_t node : {0U, 2U})
    CHECK(count_of(" lost [] in round 1", job.nodes.node(node).out()) == 1);
  CHECK(job.result(1)["reason"] == "drained");
  for (const std::size_t node : {0U, 1U}) CHECK(count_of("\"event\":\"drained\"", job.events(node)) == 1);
}

TEST_CASE("a drained node keeps its ranks if the spare's workers fail before they have announced anything",
          "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1", "--recover=rank"});
  const std::vector<std::string> actions = {"recovers",       "true", "ready",          "meet",
                                            "wait-for-round", "meet", "wait-for-round", "meet"};
  job.start("1 of 2 joined", actions);
  job.start("ready 1 ", actions);
  job.start("standing by", {"exit", "9"});
  REQUIRE(job.nodes.node(0).wait_for_output("round 0 at"));
  REQUIRE(job.nodes.node(1).wait_for_output("round 0 at"));
  CHECK(job.ctl(0, {"drain", "1"}).status == ExitStatus::exited(0));
  CHECK_FALSE(job.nodes.node(2).wait() == ExitStatus::exited(0));
  CHECK(wait_until([&] { return count_of("keeps its ranks", job.nodes.node(0).err()) > 0; }));
  job.nodes.node(0).send_signal(SIGTERM);
  job.nodes.wait();
  CHECK(count_of("ready ", job.nodes.node(0).out() + job.nodes.node(1).out()) == 2);
  CHECK(count_of("left the job", job.nodes.node(1).err()) == 0);
}

TEST_CASE("a drained node's rank that fails until the spare has taken over is no failure", "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1", "--recover=rank"});
  const auto file = [&](const char* name) { return (job.folder.path() / name).string(); };
  job.start("1 of 2 joined", {"recovers", "true", "ready", "meet", "wait-for-round", "meet"});
  job.start("ready 1 ", {"recovers", "true", "ready", "meet", "wait-for-file", file("fail"), "exit", "7"});
  job.start("standing by", {"wait-for-file", file("begin"), "recovers", "true", "ready", "meet"});
  REQUIRE(job.nodes.node(0).wait_for_output("round 0 at"));
  REQUIRE(job.nodes.node(1).wait_for_output("round 0 at"));
  CHECK(job.ctl(0, {"drain", "1"}).status == ExitStatus::exited(0));
  REQUIRE(job.nodes.node(0).wait_for_output(" in round 1"));
  job.touch("fail");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it has failed, and nobody says so
  job.touch("begin");
  CHECK(job.nodes.wait() == std::vector<ExitStatus>(3, ExitStatus::exited(0)));
  CHECK(count_of("FAILED", job.nodes.node(1).err()) == 0);
  CHECK(job.result(1)["reason"] == "drained");
}

TEST_CASE(
    "a second signal ends a node that is being drained, and a signal the spare that takes its ranks, at once",
    "[drain]") {
  const std::size_t which = GENERATE(1U, 2U);
  CAPTURE(which);
  DrainedJob job({"--nnodes=2", "--spares=1", "--recover=rank", "--max-restarts=1"});
  const std::vector<std::string> actions = {"recovers", "true", "ready", "pause"};
  job.start("1 of 2 joined", actions);
  job.start("ready 1 ", actions);
  job.start("", {"pause"});  // it never announces anything
  job.nodes.node(1).send_signal(SIGTERM);
  REQUIRE(job.says(0, "takes its ranks"));
  job.nodes.node(which).send_signal(SIGTERM);
  CHECK(job.nodes.node(which).wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGTERM));
}

TEST_CASE("without a round in place all workers save, and the next round is without the drained node",
          "[drain]") {
  const bool spare = GENERATE(true, false);
  const bool recovers = GENERATE(false, true);  // but the program does not
  CAPTURE(spare, recovers);
  std::vector<std::string> flags = {spare ? "--nnodes=2" : "--nnodes=1:2",
                                    spare ? "--spares=1" : "--last-call=60"};
  if (recovers) flags.insert(flags.end(), {"--recover=rank", "--max-restarts=1"});
  DrainedJob job(flags);
  job.start(spare ? "1 of 2 joined" : "");
  job.start("begin ");
  if (spare) job.start("standing by");
  REQUIRE(job.nodes.node(0).wait_for_output("begin 0 of 2"));
  const Finished drain = job.ctl(0, {"drain", "1"});
  CHECK(drain.status == ExitStatus::exited(0));
  const bool in_place = spare && recovers;  // the coordinator tries it
  CHECK_THAT(drain.out,
             ContainsSubstring(in_place ? " takes its ranks"
                               : spare  ? "; all workers get SIGTERM, and restart with node "
                                        : "; all workers get SIGTERM, and restart without it, on 1 node\n"));
  REQUIRE(job.nodes.node(1).wait_for_output("saving"));
  REQUIRE(job.nodes.node(0).wait_for_output("saving"));
  if (!in_place) {
    const Finished again = job.ctl(0, {"drain", "1"});
    CHECK(again.status == ExitStatus::exited(0));
    CHECK_THAT(again.out, ContainsSubstring(" is already leaving the job\n"));
    CHECK_THAT(job.ctl(1, {"top", "--once"}).out, ContainsSubstring("  leaving"));
  }
  CHECK(count_of("begin ", job.nodes.node(0).out()) == 1);  // it waits until all have saved
  job.touch("saved");
  CHECK(job.nodes.node(1).wait() == ExitStatus::exited(0));
  CHECK_THAT(job.nodes.node(1).out(), ContainsSubstring("saved 1\n"));
  const std::string next = spare ? " of 2" : " of 1";
  REQUIRE(wait_until([&] { return count_of("begin 0" + next, job.nodes.node(0).out()) == (spare ? 2 : 1); }));
  if (spare) REQUIRE(job.nodes.node(2).wait_for_output("begin 1 of 2"));
  CHECK_THAT(job.ctl(0, {"top", "--once"}).out, ContainsSubstring("drained: node "));
  job.touch("go");
  CHECK(job.nodes.wait() == std::vector<ExitStatus>(spare ? 3 : 2, ExitStatus::exited(0)));
  CHECK(count_of("begin ", job.nodes.node(1).out()) == 1);
}

TEST_CASE("SIGTERM on one node of a job with spares drains that node, and ends the job if there is no spare",
          "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1"});
  job.start("1 of 2 joined");
  job.start("begin 1 of 2");
  job.start("standing by");
  job.nodes.node(1).send_signal(SIGTERM);
  REQUIRE(job.nodes.node(0).wait_for_output("saving"));
  job.touch("saved");
  CHECK(job.nodes.node(1).wait() == ExitStatus::exited(0));
  CHECK_THAT(job.nodes.node(1).err(),
             ContainsSubstring("warning: received SIGTERM: node ") &&
                 ContainsSubstring("; all workers get SIGTERM, and restart with node"));
  CHECK(job.result(1)["reason"] == "drained");
  REQUIRE(job.nodes.node(2).wait_for_output("begin 1 of 2"));
  REQUIRE(job.nodes.node(0).wait_for_output("begin 0 of 2", 2));
  job.nodes.node(2).send_signal(SIGTERM);
  const auto ends = job.nodes.wait();
  CHECK(ends[0] == ExitStatus::exited(128 + SIGTERM));
  CHECK(ends[2] == ExitStatus::killed(SIGTERM));
  CHECK(count_of("saved ", job.nodes.node(0).out()) == 2);
}

TEST_CASE(
    "of two nodes that get SIGTERM, the second one waits for its turn, and two spares take their places",
    "[drain]") {
  DrainedJob job({"--nnodes=3", "--spares=2"});
  job.start("1 of 3 joined");
  job.start("2 of 3 joined");
  job.start("begin 2 of 3");
  for (int spare = 0; spare < 2; ++spare) job.start("standing by");
  job.nodes.node(1).send_signal(SIGTERM);
  REQUIRE(job.nodes.node(1).wait_for_output("saving"));
  job.nodes.node(2).send_signal(SIGTERM);
  REQUIRE(job.says(2, "(this node asks again for 10 s; a second SIGTERM ends the job)"));
  job.touch("saved");
  for (const std::size_t node : {1U, 2U}) {
    CHECK(job.nodes.node(node).wait() == ExitStatus::exited(0));
    CHECK(job.result(node)["reason"] == "drained");
  }
  REQUIRE(job.nodes.node(3).wait_for_output("begin "));
  REQUIRE(job.nodes.node(4).wait_for_output("begin "));
  job.touch("go");
  for (const auto& end : job.nodes.wait()) CHECK(end == ExitStatus::exited(0));
}

TEST_CASE(
    "SIGTERM under --recover=rank moves a node's ranks to a spare, and on the coordinator's it ends the job",
    "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1", "--recover=rank"});
  const std::vector<std::string> actions = {"recovers",       "true",  "ready", "--old", "meet",
                                            "wait-for-round", "--all", "meet",  "pause"};
  job.start("1 of 2 joined", actions);
  job.start("ready 1 ", actions);
  job.start("standing by", actions);
  for (const std::size_t node : {0U, 1U}) REQUIRE(job.nodes.node(node).wait_for_output(", round 0 at"));
  job.nodes.node(1).send_signal(SIGTERM);
  CHECK(job.nodes.node(1).wait() == ExitStatus::exited(0));
  REQUIRE(job.nodes.node(0).wait_for_output(", round 0 at", 2));
  REQUIRE(job.nodes.node(2).wait_for_output(", round 0 at"));
  job.nodes.node(0).send_signal(SIGTERM);
  job.nodes.wait();
  CHECK(job.nodes.node(0).wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("ready ", job.nodes.node(0).out() + job.nodes.node(2).out()) == 2);
}

TEST_CASE("a node that got SIGTERM and kept its ranks asks again, and so does another signal", "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1", "--recover=rank"});
  const std::vector<std::string> actions = {"recovers",       "true",  "ready", "--old", "meet",
                                            "wait-for-round", "--all", "meet",  "pause"};
  const std::vector<std::string> dies = {"pause"};  // it announces nothing, and so never takes over
  job.start("1 of 2 joined", actions);
  job.start("ready 1 ", actions);
  job.start("standing by", dies);
  for (const std::size_t node : {0U, 1U}) REQUIRE(job.nodes.node(node).wait_for_output(", round 0 at"));
  job.nodes.node(1).send_signal(SIGTERM);
  REQUIRE(job.says(1, "takes its ranks"));
  job.nodes.node(2).send_signal(SIGKILL);
  REQUIRE(job.says(1, "received SIGTERM, but this node stays in the job"));
  job.start("standing by", actions);
  job.nodes.node(1).send_signal(SIGTERM);
  CHECK(job.nodes.node(1).wait() == ExitStatus::exited(0));
  job.nodes.node(0).send_signal(SIGTERM);
  job.nodes.wait();
}

TEST_CASE("a spare just leaves, and what cannot leave is refused without a change", "[drain]") {
  DrainedJob job({"--nnodes=2", "--spares=1"});
  job.start("1 of 2 joined");
  job.start("begin 1 of 2");
  job.start("standing by");
  const auto refused = [&](std::size_t asked, const std::string& node, const std::string& why) {
    const Finished drain = job.ctl(asked, {"drain", node});
    CHECK(drain.status == ExitStatus::exited(1));
    CHECK_THAT(drain.err, ContainsSubstring(why));
    CHECK(count_of("\n", drain.err) == 1);
  };
  refused(1, "0", " has the coordinator and cannot be drained: end the job with ddpctl stop instead");
  refused(2, "nowhere", "the job has no node 'nowhere': ");
  refused(2, host_name(), "3 nodes of the job are called ");
  std::string spare;  // ddpctl ps shows it
  Command list{{DDPCTL_PROGRAM, "ps"}};
  list.env["DDPRUN_CONTROL_DIR"] = (job.folder.path() / "ctl").string();
  std::istringstream lines(Finished(list).out);
  for (std::string line; std::getline(lines, line);)
    if (line.find(" " + std::to_string(job.nodes.node(2).pid()) + " ") != std::string::npos)
      spare = line.substr(0, 8);
  const Finished drain = job.ctl(2, {"drain", spare});
  CHECK(drain.status == ExitStatus::exited(0));
  CHECK_THAT(drain.out, ContainsSubstring(" leaves the job; it was standing by\n"));
  CHECK(job.nodes.node(2).wait() == ExitStatus::exited(0));
  refused(0, "1", "would have 1 of at least 2 nodes, and there is no spare\n");
  job.touch("go");
  CHECK(job.nodes.wait() == std::vector<ExitStatus>(3, ExitStatus::exited(0)));
  CHECK(count_of("begin ", job.nodes.node(0).out() + job.nodes.node(1).out()) == 2);
}

TEST_CASE("ddpctl stop ends the whole job while a node is being drained", "[drain]") {
  DrainedJob job({"--nnodes=1:3", "--last-call=60"});
  job.start("");
  job.start("");
  job.start("begin ");
  for (std::size_t node = 0; node < 3; ++node) REQUIRE(job.nodes.node(node).wait_for_output("begin "));
  CHECK(job.ctl(0, {"drain", "1"}).status == ExitStatus::exited(0));
  for (std::size_t node = 0; node < 3; ++node) REQUIRE(job.nodes.node(node).wait_for_output("saving"));
  CHECK(job.ctl(GENERATE(0U, 1U, 2U), {"stop"}).status == ExitStatus::exited(0));
  job.touch("saved");
  const auto ends = job.nodes.wait();
  for (const std::size_t node : {0U, 2U})
    CHECK((ends[node] == ExitStatus::killed(SIGTERM) || ends[node] == ExitStatus::exited(128 + SIGTERM)));
  for (std::size_t node = 0; node < 3; ++node) {
    CHECK(count_of("begin ", job.nodes.node(node).out()) == 1);
    CHECK(count_of("saved ", job.nodes.node(node).out()) == 1);
  }
}

TEST_CASE("ddpctl stop is refused on a node that its user ends alone, and its workers save", "[drain]") {
  DrainedJob job({"--nnodes=1:2", "--last-call=60"});
  job.start("");
  job.start("begin ");
  job.nodes.node(1).send_signal(SIGTERM);
  REQUIRE(job.nodes.node(1).wait_for_output("saving"));
  const Finished stop = job.ctl(1, {"stop"});
  CHECK(stop.status == ExitStatus::exited(1));
  CHECK_THAT(stop.err,
             ContainsSubstring("this node is leaving the job; stop the job on another of its nodes"));
  job.touch("saved");
  job.touch("go");
  job.nodes.wait();
  CHECK(count_of("saved ", job.nodes.node(1).out()) == 1);
}

TEST_CASE("a job of one node has none to drain, and ddpctl drain wants a name", "[drain]") {
  DrainedJob job({});
  const Command none{{DDPCTL_PROGRAM, "drain"}};
  CHECK_THAT(Finished(none).err, ContainsSubstring("expected a node; usage: ddpctl drain NODE [JOB]"));
  Command alone = script({}, "until [ -e " + (job.folder.path() / "go").string() + " ]; do sleep 0.05; done");
  alone.env["DDPRUN_CONTROL_DIR"] = (job.folder.path() / "ctl").string();
  job.nodes.add(alone);
  REQUIRE(wait_until([&] { return fs::exists(job.folder.path() / "ctl"); }));
  const Finished drain = job.ctl(0, {"drain", "0"});
  CHECK(drain.status == ExitStatus::exited(1));
  CHECK_THAT(drain.err, ContainsSubstring("the job has no other node that could go on\n"));
  job.touch("go");
  job.nodes.wait();
}

}  // namespace
}  // namespace ddprun::test
