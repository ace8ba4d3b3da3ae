// --recover=rank: only a worker that failed is replaced.

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/integration/node_job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

std::vector<std::string> recovering(int workers, const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--nproc-per-node=" + std::to_string(workers), "--max-restarts=2",
                                    "--recover=rank"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST_CASE("a lost worker alone is started again, and the others meet it in a new round", "[recover]") {
  const std::string lost = GENERATE("0", "1", "2");
  CAPTURE(lost);
  const TempDir dir;
  const auto result = dir.path() / "result.json", events = dir.path() / "events.json";
  const Finished run(
      job(recovering(3, {"--result-json=" + result.string(), "--events-json=" + events.string()}),
          {"recovers", "true", "ready", "--old", "meet", "--old-rank", lost, "kill", "9", "--old",
           "wait-for-round", "--all", "meet"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ready ", run.out) == 4);
  CHECK(count_of("ready " + lost + " ", run.out) == 2);
  CHECK(count_of(", round 0 at", run.out) == 3);
  CHECK(count_of(", round 1 at", run.out) == 3);
  CHECK(count_of("lost [" + lost + "] in round 1", run.out) == 2);
  CHECK(count_of("rank 0 lost", run.out) == count_of("with a socket", run.out));
  CHECK_THAT(run.err, ContainsSubstring("rank " + lost +
                                        " failed: signal 9 (SIGKILL); replacing only this rank: "
                                        "restart 1 of 2"));
  const auto record = json::parse(read_file(result));
  CHECK(record["restarts"] == 1);
  REQUIRE(record["attempts"].size() == 1);
  CHECK(record["attempts"][0]["reason"] == "succeeded");
  CHECK(record["attempts"][0]["workers"].size() == 4);
  CHECK(record["attempts"][0]["workers"][3]["status"]["signal"] == 9);
  std::ifstream lines(events);
  for (std::string line; std::getline(lines, line);) {
    const auto event = json::parse(line);
    if (event["event"] != "started" && event["event"] != "exited" && event["event"] != "first_output")
      continue;
    INFO(line);
    const bool replaces = event["pid"] == record["attempts"][0]["workers"][std::stoul(lost)]["pid"];
    CHECK(event["attempt"] == (replaces ? 1 : 0));
  }
}

pid_t pid_of(const std::string& rank, const Child& child) {
  const std::string out = child.out(), name = "ready " + rank + " ";
  return std::stoi(out.substr(out.find(name) + name.size()));
}

/// The process has ended, and may not be reaped yet.
bool has_ended(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  return !std::getline(file, stat) || stat.find(") Z ") != std::string::npos;
}

TEST_CASE("workers that are lost together use up one restart", "[recover]") {
  Child child(job({"--nproc-per-node=3", "--max-restarts=1", "--recover=rank"},
                  {"recovers", "true", "ready", "--old-rank", "1", "pause", "--old-rank", "2", "pause",
                   "--old", "wait-for-round", "--all", "meet"}));
  REQUIRE(child.wait_for_output("ready ", 3));
  child.send_signal(SIGSTOP);
  for (const char* rank : {"1", "2"}) {
    ::kill(pid_of(rank, child), SIGKILL);
    CHECK(wait_until([&] { return has_ended(pid_of(rank, child)); }));
  }
  child.send_signal(SIGCONT);
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK(count_of(", round 1 at", child.out()) == 3);
  CHECK_THAT(child.err(), ContainsSubstring("replacing ranks 1, 2"));
  check_nothing_left(child);
}

TEST_CASE("a round in place whose log folder cannot be made begins all the same", "[recover]") {
  const TempDir dir;
  const auto logs = dir.path() / "logs";
  const auto go = (dir.path() / "go").string();
  Child child(job(recovering(2, {"--log-dir=" + logs.string(), "--redirects=1:3"}),
                  {"recovers", "true", "ready", "--old-rank", "1", "wait-for-file", go, "kill", "9", "--old",
                   "wait-for-round", "--all", "meet"}));
  REQUIRE(child.wait_for_output("ready 0"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(logs))
    if (entry.path().filename() == "attempt_0")
      write_file_atomic(entry.path().parent_path() / "attempt_1", "");
  write_file_atomic(go, "");
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK(count_of(", round 1 at", child.out()) == 2);
  CHECK(count_of("goes to the console instead; the job goes on", child.err()) == 1);
  check_nothing_left(child);
}

TEST_CASE("replacing a worker costs no descriptor", "[recover]") {
  Child child(job({"--nproc-per-node=2", "--max-restarts=9", "--recover=rank"},
                  {"recovers", "true", "ready", "--rank", "1", "pause", "--rank", "0", "wait-for-round",
                   "wait-for-round", "wait-for-round", "wait-for-round", "wait-for-round", "pause"}));
  const auto descriptors = [&] {
    const fs::path folder = "/proc/" + std::to_string(child.pid()) + "/fd";
    return std::distance(fs::directory_iterator(folder), {});
  };
  const auto count_settles_at = [&](std::ptrdiff_t count) {
    return wait_until([&] { return descriptors() == count; }, std::chrono::seconds(5));
  };
  std::ptrdiff_t before = 0;
  REQUIRE(child.wait_for_output("ready 0 "));  // it has announced that it recovers
  for (int round = 1; round <= 5; ++round) {
    REQUIRE(child.wait_for_output("ready 1 ", round));
    const std::string out = child.out();
    ::kill(std::stoi(out.substr(out.rfind("ready 1 ") + 8)), SIGKILL);
    REQUIRE(child.wait_for_output("rank 0 lost [1] in round " + std::to_string(round)));
    REQUIRE(child.wait_for_output("ready 1 ", round + 1));
    if (round == 1) before = descriptors();
  }
  CHECK(count_settles_at(before));
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(child);
}

TEST_CASE("an error as a round in place begins ends the survivors as any end does", "[recover]") {
  need_no_sanitizer();
  const TempDir dir;
  const auto result = dir.path() / "result.json";
  const auto go = (dir.path() / "go").string(), end = (dir.path() / "end").string();
  Child child(job(recovering(2, {"--result-json=" + result.string()}),
                  {"recovers", "true", "--rank", "0", "daemon", "ready", "await", "wait-for-file", end,
                   "--rank", "1", "ready", "wait-for-file", go, "kill", "9"}));
  REQUIRE(child.wait_for_output("ready ", 2));
  const rlimit none{3, 4096}, enough{4096, 4096};
  REQUIRE(::prlimit(child.pid(), RLIMIT_NOFILE, &none, nullptr) == 0);
  write_file_atomic(go, "");
  CHECK(child.wait_for_output("got SIGTERM rank 0"));
  REQUIRE(::prlimit(child.pid(), RLIMIT_NOFILE, &enough, nullptr) == 0);
  write_file_atomic(end, "");
  CHECK(child.wait() == ExitStatus::exited(125));
  CHECK(count_of("got SIGTERM rank 0", child.out()) == 1);
  CHECK(json::parse(read_file(result))["attempts"].size() == 1);
  check_nothing_left(child);
}

TEST_CASE("a signal that is passed on does not end a worker that does not handle it yet", "[recover]") {
  const bool handles = GENERATE(true, false);
  const TempDir dir;
  const auto events = dir.path() / "events.json";
  const auto go = (dir.path() / "go").string();
  const auto flags = recovering(2, {"--events-json=" + events.string()});
  Child child(handles ? script(flags, "trap 'echo got it' USR1; echo ready; until [ -e " + go +
                                          " ]; do sleep 0.02; done")
                      : job(flags, {"ready", "wait-for-file", go}));
  REQUIRE(child.wait_for_output("ready", 2));
  child.send_signal(SIGUSR1);
  CHECK(wait_until([&] { return count_of("SIGUSR1", read_file(events)) > 0; }));
  if (handles) CHECK(child.wait_for_output("got it", 2));
  write_file_atomic(go, "");
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK(count_of("got it", child.out()) == (handles ? 2 : 0));
  CHECK(count_of("ready", child.out()) == 2);  // no restart
  check_nothing_left(child);
}

TEST_CASE("a worker that the OOM killer took is replaced alone, and the reason is told", "[recover]") {
  // Beside this process's own: ddprun counts the kills of its cgroup.
  const std::string text = read_file("/proc/self/cgroup", 1 << 16);
  const auto v1 = text.find(":memory:");
  const fs::path parent = v1 == std::string::npos
                              ? "/sys/fs/cgroup"
                              : "/sys/fs/cgroup/memory" + text.substr(v1 + 8, text.find('\n', v1) - v1 - 8);
  const fs::path group = parent / ("ddprun-test-" + std::to_string(::getpid()));
  std::error_code error;
  if (!fs::create_directory(group, error)) skip("no memory cgroup can be made here: " + error.message());
  const auto limit = group / (v1 == std::string::npos ? "memory.max" : "memory.limit_in_bytes");
  if (!(std::ofstream(limit) << "400000000" << std::flush)) {
    fs::remove(group);
    skip("no cgroup's memory can be limited here");
  }
  {
    auto command = job(recovering(2), {"recovers", "true", "--old-rank", "1", "fill-memory", "1000", "--old",
                                       "wait-for-round", "--all", "say", "goes on"});
    command.in_child = [&] { std::ofstream(group / "cgroup.procs") << ::getpid() << std::flush; };
    const Finished run(command);
    CHECK(run.status == ExitStatus::exited(0));
    CHECK(count_of("goes on", run.out) == 2);
    CHECK_THAT(run.err,
               ContainsSubstring("rank 1 failed: signal 9 (SIGKILL), out of memory: the kernel killed "));
    CHECK_THAT(run.err, ContainsSubstring("; replacing only this rank: restart 1 of 2"));
  }
  CHECK(wait_until([&] { return fs::remove(group, error); }));
}

TEST_CASE("all workers start again if one of them cannot go on without the lost one", "[recover]") {
  const std::string says = GENERATE("nothing", "false");
  std::vector<std::string> actions = {"recovers", "true"};
  if (says == "nothing") actions.insert(actions.begin(), {"--rank", "1"});
  actions.insert(actions.end(), {"--rank", "0", "wait-for-file", "/proc/self"});
  if (says == "false") actions.insert(actions.end(), {"recovers", "false"});
  actions.insert(actions.end(), {"--all", "ready", "meet"});
  auto command = job(recovering(2), actions);
  command.argv.insert(command.argv.end(), {"--rank", "1", "wait-for-file", "/proc/self", "kill", "9"});
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(128 + 9));
  CHECK(count_of("ready ", run.out) == 6);
  CHECK_THAT(run.err, ContainsSubstring(says == "nothing"
                                            ? "restarting all workers (restart 1 of 2): the program has not "
                                              "announced support for --recover=rank\n"
                                            : "restarting all workers: restart 1 of 2\n"));
  CHECK(count_of("only this rank", run.err) == 0);
}

TEST_CASE("a worker that always fails uses up the restarts, and its code is the job's", "[recover]") {
  const Finished run(
      job(recovering(2), {"recovers", "true", "ready", "--rank", "1", "expect-no-signal", "150", "exit", "7",
                          "--rank", "0", "await"}));  // not before rank 0 has announced that it recovers
  CHECK(run.status == ExitStatus::exited(7));
  CHECK(count_of("ready 0", run.out) == 1);
  CHECK(count_of("ready 1", run.out) == 3);
  CHECK(count_of("Root Cause", run.err) == 1);
  CHECK_THAT(run.err, ContainsSubstring("not restarted: --max-restarts=2 is used up"));
}

TEST_CASE("a worker that fails in each round uses up the restarts, however old the job is", "[recover]") {
  const Finished run(job(recovering(2, {"--restart-window=0.4"}),
                         {"recovers", "true", "ready", "--rank", "1", "expect-no-signal", "150", "exit", "7",
                          "--rank", "0", "await"}));
  CHECK(run.status == ExitStatus::exited(7));
  CHECK(count_of("ready 1", run.out) == 3);
}

TEST_CASE("a lost worker's last lines and the new one's go to the console and to files", "[recover]") {
  const TempDir dir;
  const Finished run(job(recovering(2, {"--log-dir=" + dir.path().string(), "--tee=3"}),
                         {"recovers", "true", "--old", "meet", "--old-rank", "1", "say", "last words", "kill",
                          "9", "--old", "wait-for-round", "--all", "meet", "--rank", "1", "say", "again"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("last words\n", run.out) == 1);
  CHECK(count_of("again\n", run.out) == 1);
  std::string first, second;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    const std::string path = entry.path().string();
    if (path.ends_with("attempt_0/1/stdout.log")) first = read_file(entry.path());
    if (path.ends_with("attempt_1/1/stdout.log")) second = read_file(entry.path());
  }
  CHECK_THAT(first, ContainsSubstring("last words"));
  CHECK_THAT(second, ContainsSubstring("again"));
}

TEST_CASE("what a lost worker left behind ends with it, and nothing outlives the job", "[recover]") {
  const Finished run(job(recovering(2, {"--shutdown-timeout=1"}),
                         {"recovers", "true", "--old", "meet", "--old-rank", "1", "stubborn-child", "daemon",
                          "kill", "9", "--old", "wait-for-round", "--all", "meet"}));
  CHECK(run.status == ExitStatus::exited(0));
}

TEST_CASE("a process that a lost worker left behind has its time to save, and no more", "[recover]") {
  const TempDir dir;
  const auto saved = (dir.path() / "saved").string(), stubborn = (dir.path() / "stubborn").string();
  const auto program = dir.path() / "rank.sh";
  write_file_atomic(program,
                    "#!/bin/bash\n"
                    "if [ $DDPRUN_ROUND = 0 ] && [ $RANK = 1 ]; then\n"
                    "  (trap 'sleep 0.5; touch " +
                        saved +
                        "; exit' TERM; while :; do sleep 0.05; done) &\n"
                        "  (trap '' TERM; echo $BASHPID > " +
                        stubborn +
                        "; exec sleep 600) &\n"
                        "  until [ -s " +
                        stubborn +
                        " ]; do sleep 0.01; done\n"
                        "fi\n"
                        "exec " STUB_WORKER_PROGRAM " \"$@\"\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  Command command = job(recovering(2, {"--shutdown-timeout=2"}),
                        {"recovers", "true", "--old", "meet", "--old-rank", "1", "kill", "9", "--old",
                         "wait-for-round", "--all", "meet", "pause"});
  std::ranges::replace(command.argv, std::string(STUB_WORKER_PROGRAM), program.string());
  Child ddprun(command);
  REQUIRE(wait_until([&] { return std::filesystem::exists(saved); }));
  const auto left = "/proc/" + std::to_string(std::stoi(read_file(stubborn))) + "/stat";
  CHECK(std::filesystem::exists(left));
  CHECK(wait_until([&] { return !std::filesystem::exists(left); }));
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
}

TEST_CASE("a process that stands by takes a lost worker's place, streams and descriptors", "[recover]") {
  const std::string lost = GENERATE("0", "1");
  CAPTURE(lost);
  const TempDir dir;
  const auto waits = (dir.path() / "waits").string();
  const Finished run(
      job(recovering(2, {"--standby=1", "--hang-timeout=60", "--log-dir=" + dir.path().string(), "--tee=3"}),
          {"stand-by", waits,           "recovers", "true", "--old", "meet",  "--old-rank",
           lost,       "wait-for-file", waits,      "kill", "9",     "--old", "wait-for-round",
           "--all",    "meet",          "beat",     "1",    "say",   "met"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("stood by for rank " + lost, run.out) == 1);
  CHECK(count_of(", round 1 at", run.out) == 2);
  CHECK(count_of("met\n", run.out) == 2);
  CHECK(count_of("did not end", run.err) == 0);
  std::string file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path()))
    if (entry.path().string().ends_with("attempt_1/" + lost + "/stdout.log")) file = read_file(entry.path());
  CHECK_THAT(file, ContainsSubstring("stood by for rank " + lost));
}

TEST_CASE("no process stands by for a program that has not said that it can", "[recover]") {
  const TempDir dir;
  const auto starts = (dir.path() / "starts").string();
  const Finished run(script({"--nproc-per-node=2", "--recover=rank", "--max-restarts=1", "--standby=1"},
                            "echo x >>" + starts + "; sleep 1.5"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(read_file(starts) == "x\nx\n");
}

TEST_CASE("in place of a process that stood by and has ended, a new one is started, at once or to stand by",
          "[recover]") {
  const TempDir dir;
  const auto waits = (dir.path() / "waits").string(), go = (dir.path() / "go").string();
  Child child(job(recovering(2, {"--standby=1"}),
                  {"stand-by", waits, "recovers", "true", "--old", "meet", "--old-rank", "1", "wait-for-file",
                   go, "kill", "9", "--old", "wait-for-round", "--all", "meet"}));
  REQUIRE(wait_until([&] { return std::filesystem::exists(waits); }));
  for (const pid_t pid : child.processes())
    if (const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
        environment.find("DDPRUN_STANDBY_FD=") != std::string::npos) {
      // It has no rank yet.
      for (const std::string name : {"RANK", "LOCAL_RANK", "ROLE_RANK"})
        CHECK_THAT(environment, ContainsSubstring('\0' + name + "=2" + '\0'));
      std::filesystem::remove(waits);
      ::kill(pid, SIGKILL);
      REQUIRE(wait_until([&] { return has_ended(pid); }));
    }
  const bool later = GENERATE(false, true);
  if (later) REQUIRE(wait_until([&] { return std::filesystem::exists(waits); }));
  std::ofstream(go).close();
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK_THAT(child.err(), ContainsSubstring(" has ended: another will start"));
  if (later) CHECK(count_of("stood by for rank 1", child.out()) == 1);
  CHECK(count_of(", round 1 at", child.out()) == 2);
}

TEST_CASE("a worker that is lost on one of two nodes is replaced alone, and those of both go on",
          "[recover]") {
  const std::string lost = GENERATE("0", "3");
  CAPTURE(lost);
  NodeJob nodes;
  const std::vector<std::string> actions = {"recovers",       "true",  "ready", "--old", "meet",
                                            "--old-rank",     lost,    "kill",  "9",     "--old",
                                            "wait-for-round", "--all", "meet"};
  for (int i = 0; i < 2; ++i) nodes.start(recovering(2, {"--nnodes=2"}), actions);
  const auto ends = nodes.wait();
  const std::string out = nodes.node(0).out() + nodes.node(1).out(),
                    err = nodes.node(0).err() + nodes.node(1).err();
  CAPTURE(out, err);
  CHECK(ends == std::vector<ExitStatus>(2, ExitStatus::exited(0)));
  CHECK(count_of("ready ", out) == 5);
  CHECK(count_of("ready " + lost + " ", out) == 2);
  CHECK(count_of(", round 0 at", out) == 4);
  CHECK(count_of(", round 1 at", out) == 4);
  CHECK(count_of(" in round 1", out) == 3);
  CHECK(count_of("replacing only this rank: restart 1 of 2", err) == 2);
}

TEST_CASE("a worker is replaced while rank 0 listens on a port that the user chose", "[recover]") {
  NodeJob nodes;
  for (const char* rank : {"0", "1"})
    nodes.add(job(recovering(1, {"--nnodes=2", std::string("--node-rank=") + rank, "--master-addr=127.0.0.1",
                                 "--master-port=" + nodes.port}),
                  {"recovers", "true", "--old-rank", "0", "listen", "--old-rank", "1", "kill", "9", "--old",
                   "wait-for-round", "--all", "meet"}));
  CHECK(nodes.wait() == std::vector<ExitStatus>(2, ExitStatus::exited(0)));
  CHECK(count_of(", round 1 at", nodes.node(0).out() + nodes.node(1).out()) == 2);
}

TEST_CASE("a node that stands by takes a lost node's place, and the other node's workers go on",
          "[recover]") {
  const bool in_place = GENERATE(true, false);
  const bool wanted = in_place || GENERATE(true, false);  // of a program that does not announce support
  CAPTURE(in_place, wanted);
  NodeJob nodes;
  std::vector<std::string> flags = {"--nnodes=2", "--spares=1", "--nproc-per-node=1"};
  if (wanted) flags.insert(flags.end(), {"--recover=rank", "--max-restarts=1"});
  std::vector<std::string> actions = {"ready", "pause"};
  if (in_place) actions = {"recovers", "true", "ready", "--old", "meet", "wait-for-round", "--all", "meet"};
  nodes.start(flags, actions);
  REQUIRE(
      wait_until([&] { return count_of("1 of 2 joined", nodes.node(0).err()) > 0; }));  // the first: rank 0
  nodes.start(flags, actions);
  REQUIRE(nodes.node(0).wait_for_output(in_place ? ", round 0 at" : "ready "));
  REQUIRE(nodes.node(1).wait_for_output("ready "));
  nodes.start(flags, actions);
  REQUIRE(wait_until([&] { return count_of("standing by", nodes.node(2).err()) > 0; }));
  nodes.node(1).send_signal(SIGKILL);
  REQUIRE(nodes.node(2).wait_for_output("ready 1 "));
  CHECK(nodes.node(0).wait_for_output("ready 0 ", in_place ? 1 : 2));
  if (!in_place) nodes.node(0).send_signal(SIGTERM);
  const auto ends = nodes.wait();
  CHECK(ends[0] == (in_place ? ExitStatus::exited(0) : ExitStatus::killed(SIGTERM)));
  CHECK(ends[2] == ExitStatus::exited(in_place ? 0 : 128 + SIGTERM));
  CHECK(count_of("ready ", nodes.node(0).out()) == (in_place ? 1 : 2));
  CHECK(count_of("has not announced support", nodes.node(0).err()) == (wanted && !in_place ? 1 : 0));
  for (const std::size_t node : {0U, 2U})
    CHECK(count_of(" takes its ranks", nodes.node(node).err()) == (wanted ? 1 : 0));
}

TEST_CASE("workers that start in a lost node's place meet the others although another rank is lost meanwhile",
          "[recover]") {
  const TempDir dir;
  const std::string fail = (dir.path() / "fail").string(), begin = (dir.path() / "begin").string();
  NodeJob nodes;
  const auto flags = recovering(2, {"--nnodes=2", "--spares=1"});
  const std::vector<std::string> actions = {
      "recovers",      "true", "ready", "--old", "meet",  "wait-for-round", "--old-rank", "1",
      "wait-for-file", fail,   "kill",  "9",     "--old", "wait-for-round", "--all",      "meet"};
  nodes.start(flags, actions);
  REQUIRE(wait_until([&] { return count_of("1 of 2 joined", nodes.node(0).err()) > 0; }));
  nodes.start(flags, {"recovers", "true", "ready", "meet", "pause"});
  REQUIRE(nodes.node(0).wait_for_output(", round 0 at", 2));
  nodes.start(flags, {"ready", "wait-for-file", begin, "recovers", "true", "wait-for-round", "meet"});
  REQUIRE(wait_until([&] { return count_of("standing by", nodes.node(2).err()) > 0; }));
  nodes.node(1).send_signal(SIGKILL);
  REQUIRE(nodes.node(2).wait_for_output("ready ", 2));
  REQUIRE(nodes.node(0).wait_for_output(" in round 1", 2));
  write_file_atomic(fail, "");
  REQUIRE(nodes.node(0).wait_for_output(" in round 2"));
  write_file_atomic(begin, "");
  const auto ends = nodes.wait();
  CAPTURE(nodes.node(0).err(), nodes.node(2).err());
  CHECK(ends[0] == ExitStatus::exited(0));
  CHECK(ends[2] == ExitStatus::exited(0));
  CHECK(count_of("ready ", nodes.node(0).out()) == 3);
  CHECK(count_of("ready ", nodes.node(2).out()) == 2);
}

TEST_CASE("all nodes' workers start again if those of one cannot go on", "[recover]") {
  NodeJob nodes;
  for (int i = 0; i < 2; ++i)
    nodes.start(recovering(1, {"--nnodes=2"}),
                {"--rank", "0", "recovers", "true", "--all", "ready", "meet", "--old-rank", "1", "kill", "9",
                 "--old-rank", "0", "pause", "--all", "meet"});
  CHECK(nodes.wait() == std::vector<ExitStatus>(2, ExitStatus::exited(0)));
  CHECK(count_of("ready ", nodes.node(0).out() + nodes.node(1).out()) == 4);
}

TEST_CASE("all workers start again if one node alone has --recover=rank", "[recover]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  NodeJob nodes;
  nodes.start(recovering(1, {"--nnodes=2", "--node-rank=0"}),
              {"recovers", "true", "meet", "--old", "exit", "3"});
  nodes.start({"--nnodes=2", "--max-restarts=2", "--node-rank=1"}, {"meet", "wait-for-file", go});
  CHECK(nodes.node(0).wait_for_output("met 0 of 2, round 1"));
  write_file_atomic(go, "");
  CHECK(nodes.wait() == std::vector<ExitStatus>(2, ExitStatus::exited(0)));
  CHECK(count_of("met 1 of 2, round 1", nodes.node(1).out()) == 1);
  CHECK_THAT(nodes.node(1).err(),
             ContainsSubstring("the program has not announced support for --recover=rank"));
}

TEST_CASE("a standby process for which there are no descriptors costs no job", "[recover]") {
  need_no_sanitizer();  // which needs descriptors, too
  const TempDir folder;
  const std::string waits = folder.path() / "waits", go = folder.path() / "go";
  Command command = job(recovering(2, {"--standby=4"}),
                        {"stand-by", waits, "recovers", "true", "ready", "wait-for-file", go});
  command.in_child = [] {
    const rlimit limit{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  CHECK(wait_until([&] { return count_of("--standby: cannot start a process", ddprun.err()) > 0; }));
  write_file_atomic(go, "");
  CHECK(ddprun.wait() == ExitStatus::exited(0));
}

TEST_CASE("without restarts --recover=rank is pointed out", "[recover]") {
  const Finished run(script({"--recover=rank"}, "true"));
  CHECK_THAT(run.err, ContainsSubstring("--recover=rank has no effect without --max-restarts"));
  const Finished refused(script({"--recover=some"}, "true"));
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK_THAT(refused.err, ContainsSubstring("--recover: expected all or rank, got 'some'"));
}

}  // namespace
}  // namespace ddprun::test
