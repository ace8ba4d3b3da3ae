// Restarts, timeouts and hangs.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using namespace std::chrono_literals;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("a job that fails once succeeds after a restart, on a new port", "[restarts]") {
  const Finished run(script({"--nproc-per-node=2", "--max-restarts=1"},
                            "echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT; "
                            "[ $TORCHELASTIC_RESTART_COUNT = 1 ]"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("0/1 ", run.out) >= 1);
  CHECK(count_of("1/1 ", run.out) == 2);
  std::set<std::string> ports;
  for (const std::string& line : lines_of(run.out)) ports.insert(line.substr(4));
  CHECK(ports.size() == 2);
  CHECK_THAT(run.err, ContainsSubstring("restart 1 of 1"));
}

TEST_CASE("a given master port is kept across restarts", "[restarts]") {
  const Finished free(script({}, "echo $MASTER_PORT"));
  const std::string port = free.out.substr(0, free.out.size() - 1);
  const Finished run(script({"--master-port=" + port, "--max-restarts=1"},
                            "echo $MASTER_PORT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of(port + "\n", run.out) == 2);
}

TEST_CASE("a job that always fails ends with the last code, after waits that double", "[restarts]") {
  const auto begin = steady_clock::now();
  const Finished run(
      script({"--max-restarts=2", "--restart-backoff=0.1"}, "exit $((5 + TORCHELASTIC_RESTART_COUNT))"));
  CHECK(run.status == ExitStatus::exited(7));
  CHECK(count_of("Root Cause", run.err) == 3);
  CHECK(steady_clock::now() - begin >= 300ms);
}

TEST_CASE("only the codes named are started again", "[restarts]") {
  const auto [code, attempts] = GENERATE(table<int, int>({{3, 2}, {4, 1}}));
  const Finished run(
      script({"--max-restarts=1", "--restart-on-codes=3,SIGKILL"}, "echo try; exit " + std::to_string(code)));
  CHECK(run.status == ExitStatus::exited(code));
  CHECK(count_of("try", run.out) == attempts);
}

TEST_CASE("a program resumes from its own file after a restart", "[restarts]") {
  const TempDir folder;
  const std::string state = folder.path() / "state";
  const Finished run(
      script({"--max-restarts=3"}, "n=$(cat " + state +
                                       " 2>/dev/null || echo 0); while [ $n -lt 9 ]; do n=$((n + 1)); "
                                       "echo step $n; echo $n > " +
                                       state + "; [ $((n % 3)) != 0 ] || [ $n = 9 ] || exit 1; done"));
  CHECK(run.status == ExitStatus::exited(0));
  for (int step = 1; step <= 9; ++step) CHECK(count_of("step " + std::to_string(step) + "\n", run.out) == 1);
}

TEST_CASE("a signal ends the wait for a restart at once", "[restarts]") {
  Child ddprun(script({"--max-restarts=1", "--restart-backoff=600"}, "exit 1"));
  REQUIRE(wait_until([&] { return count_of("restart 1 of 1", ddprun.err()) == 1; }));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("the job's time limit holds during the wait for a restart", "[restarts]") {
  const Finished run(script({"--max-restarts=1", "--restart-backoff=600", "--timeout=2"}, "exit 1"));
  CHECK(run.status == ExitStatus::exited(124));
}

TEST_CASE("a signal while a failed attempt is being ended prevents the restart", "[restarts]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  Child ddprun(
      job({"--nproc-per-node=2", "--max-restarts=5", "--shutdown-timeout=600"},
          {"ready", "--rank", "0", "wait-for-file", go, "exit", "3", "--rank", "1", "await", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  write_file_atomic(go, "");
  REQUIRE(ddprun.wait_for_output("got SIGTERM rank 1"));  // which goes on all the same
  ddprun.send_signal(SIGINT);
  ddprun.send_signal(SIGTERM);  // of another kind: two that are alike may arrive as one
  ddprun.wait();
  CHECK(count_of("ready ", ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("the stacks that Python prints when a job is ended say whose they are", "[timeouts]") {
  const TempDir folder;
  const std::string program =
      "import sys, time\ndef hanging():\n    print('begins', file=sys.stderr, flush=True)\n    "
      "time.sleep(600)\nhanging()";
  const auto prefix = GENERATE("", "--no-prefix");
  std::vector<std::string> words = {"--nproc-per-node=2", "--timeout=4", "--log-dir", folder.path()};
  if (*prefix != '\0') words.emplace_back(prefix);
  words.insert(words.end(), {"python3", "-c", program});
  const Finished run(ddprun_command(words));
  CHECK(run.status == ExitStatus::exited(124));
  if (count_of("in hanging", run.err) == 0) skip("py-spy shows the stacks");
  CHECK(count_of("begins\n", run.err) == 2);  // as long as all is well, a pipe has the worker's own lines
  CHECK(count_of("]:begins", run.err) == 0);
  for (const char* rank : {"0", "1"}) {
    const std::string frame = "  File \"<string>\", line 4 in hanging\n";
    CHECK(count_of("[default" + std::string(rank) + "]:" + frame, run.err) == (*prefix == '\0' ? 1 : 0));
  }
}

TEST_CASE("without debuggers Python shows the stacks of a hang, and the report comes after them",
          "[timeouts]") {
  const std::string python = "/usr/bin/python3";
  if (!std::filesystem::exists(python)) skip("there is no " + python);
  const TempDir folder, no_tools;
  Command command = ddprun_command(
      {"--nproc-per-node=2", "--hang-timeout=3", "--log-dir", folder.path(), python, "-c",
       "import sys, time\ndef hanging():\n    print('begins', file=sys.stderr, flush=True)\n    "
       "time.sleep(600)\nhanging()"});
  command.env["PATH"] = no_tools.path();
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(124));
  const auto report = run.err.find(python + " FAILED\n");
  REQUIRE(report != std::string::npos);
  for (const char* rank : {"0", "1"}) {
    const auto stack =
        run.err.find("[default" + std::string(rank) + "]:  File \"<string>\", line 4 in hanging\n");
    CHECK(stack < report);
    CHECK(run.err.find("File", report) == std::string::npos);
    CHECK(count_of("rank " + std::string(rank) + " (pid ", run.err) == 1);
  }
  CHECK_THAT(run.err, ContainsSubstring("pip install py-spy"));
  CHECK_THAT(run.err,
             ContainsSubstring("  outcome   : no sign of life for 3 s (--hang-timeout)\n"
                               "              nor from 1 more: their stacks show which one is late\n"));
  CHECK_THAT(run.err, ContainsSubstring("stacks    : " + folder.path().string()));
}

TEST_CASE("a debugger that never answers does not hold up the end of a hang", "[timeouts]") {
  const TempDir folder, tools;
  write_file_atomic(tools.path() / "gdb", "#!/bin/sh\nexec /bin/sleep 600\n");
  std::filesystem::permissions(tools.path() / "gdb", std::filesystem::perms::owner_all);
  Command command =
      job({"--nproc-per-node=2", "--hang-timeout=0.5", "--log-dir", folder.path()}, {"ready", "pause"});
  command.env["PATH"] = tools.path();
  const auto begin = std::chrono::steady_clock::now();
  const Finished run(command);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  CHECK(run.status == ExitStatus::exited(124));
  CHECK(count_of("no stacks: gdb: not done in time", run.err) == 2);
}

TEST_CASE("a job that lasts too long ends with 124 and its stacks", "[timeouts]") {
  const TempDir folder;
  const Finished run(
      job({"--nproc-per-node=2", "--timeout=2", "--log-dir", folder.path()}, {"ready", "pause"}));
  CHECK(run.status == ExitStatus::exited(124));
  CHECK_THAT(run.err, ContainsSubstring("did not end within 2 s (--timeout)"));
  CHECK(run.err.ends_with(" FAILED: the job timed out (--timeout)\n"));
  int stacks = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.path().filename().string().rfind("stacks_", 0) == 0) {
      ++stacks;
      CHECK_THAT(read_file(entry.path()), ContainsSubstring("stub_worker"));
    }
  CHECK(stacks == 2);
}

TEST_CASE("a job without a sign of life ends with 124", "[timeouts]") {
  const TempDir folder;
  const Finished run(
      job({"--nproc-per-node=2", "--hang-timeout=0.5", "--log-dir", folder.path()}, {"ready", "pause"}));
  CHECK(run.status == ExitStatus::exited(124));
  CHECK_THAT(run.err, ContainsSubstring("for 0.5 s (--hang-timeout)"));
}

TEST_CASE("output and heartbeats keep a job alive", "[timeouts]") {
  // Rank 1 is silent for longer than the timeout, and so is the sum of the pauses: each pause is far below
  // it.
  const Finished talking(script({"--nproc-per-node=2", "--hang-timeout=3"},
                                "[ $RANK = 0 ] || sleep 4; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; "
                                "do echo x; sleep 0.25; done"));
  INFO(talking.out << talking.err);
  CHECK(talking.status == ExitStatus::exited(0));
  const Finished beating(script({"--hang-timeout=3"},
                                "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo > "
                                "/proc/self/fd/$DDPRUN_HEARTBEAT_FD; sleep 0.25; done"));
  CHECK(beating.status == ExitStatus::exited(0));
}

TEST_CASE("a rank whose heartbeat stops is the one that hangs", "[timeouts]") {
  const TempDir folder;
  const Finished run(script({"--nproc-per-node=2", "--hang-timeout=2", "--log-dir", folder.path()},
                            "echo > /proc/self/fd/$DDPRUN_HEARTBEAT_FD; [ $RANK = 0 ] || kill -STOP $$; "
                            "while :; do echo > /proc/self/fd/$DDPRUN_HEARTBEAT_FD; sleep 0.1; done"));
  CHECK(run.status == ExitStatus::exited(124));
  CHECK_THAT(run.err, ContainsSubstring("no sign of life from rank 1 for"));
}

TEST_CASE("a hang is started again while restarts are left", "[timeouts]") {
  const TempDir folder;
  const Finished run(script({"--hang-timeout=3", "--max-restarts=1", "--log-dir", folder.path()},
                            "echo try; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 100"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("try", run.out) == 2);
}

TEST_CASE("the JSON files tell what happened, in order", "[records]") {
  const TempDir folder;
  const std::string result = folder.path() / "result.json", events = folder.path() / "events.jsonl";
  const Finished run(
      script({"--nproc-per-node=2", "--max-restarts=1", "--result-json=" + result, "--events-json", events},
             "echo words >&2; [ $RANK = 0 ] && sleep 100; exit 2"));
  CHECK(run.status == ExitStatus::exited(2));
  const json record = json::parse(read_file(result));
  CHECK(record["reason"] == "failed");  // and not usage, whose code 2 is
  CHECK(record["exit_code"] == 2);
  CHECK(record["root_cause_rank"] == 1);
  REQUIRE(record["attempts"].size() == 2);
  CHECK(record["attempts"][0]["workers"].size() == 2);
  CHECK_THAT(record["attempts"][1].dump(), ContainsSubstring("words"));
  std::vector<std::string> kinds;
  std::int64_t last = 0;
  for (const std::string& line : lines_of(read_file(events))) {
    const json event = json::parse(line);
    kinds.push_back(event["event"]);
    if (event["event"] != "exited" && event["event"] != "started") {
      CHECK(event["t_ns"].get<std::int64_t>() >= last);
      last = event["t_ns"].get<std::int64_t>();
    }
  }
  for (const char* kind : {"started", "first_output", "exited", "stopping", "restart", "finished"})
    CHECK(std::count(kinds.begin(), kinds.end(), kind) >= 1);
  CHECK(std::count(kinds.begin(), kinds.end(), "started") == 4);
  CHECK(kinds.front() == "started");
  CHECK(kinds.back() == "finished");
}

TEST_CASE("a result that cannot be written is refused before the job runs", "[records]") {
  const TempDir folder;
  const std::string file = folder.path() / "file";
  write_file_atomic(file, "");
  for (const std::string result : {folder.path() / "missing" / "result.json", folder.path(),
                                   std::filesystem::path(file) / "result.json"}) {
    const Finished run(script({"--result-json=" + result}, "echo runs"));
    CHECK(run.status == ExitStatus::exited(2));
    CHECK(run.out == "");
    CHECK(run.err.starts_with("ddprun: error: --result-json: expected "));
    CHECK_THAT(run.err, ContainsSubstring(result));
    CHECK(count_of("\n", run.err) == 1);
  }
  const Finished piped({{"bash", "-c", "\"$0\" --result-json=>(grep -c exit_code) true", DDPRUN_PROGRAM}});
  CHECK(piped.status == ExitStatus::exited(0));
}

TEST_CASE("the result says when ddprun itself failed", "[records]") {
  const TempDir folder;
  const std::string result = folder.path() / "result.json";
  const Finished missing({{DDPRUN_PROGRAM, "--result-json=" + result, "./no-such-program"}});
  CHECK(missing.status == ExitStatus::exited(127));
  CHECK(json::parse(read_file(result))["reason"] == "not-found");
  const Finished timeout(
      job({"--timeout=0.2", "--log-dir", folder.path(), "--result-json=" + result}, {"pause"}));
  CHECK(timeout.status == ExitStatus::exited(124));
  CHECK(json::parse(read_file(result))["reason"] == "timeout");
}

TEST_CASE("a launcher around ddprun gets the root cause's error", "[records]") {
  const TempDir folder;
  Command command = job({"--nproc-per-node=2"},
                        {"--rank", "1", "error", "lost my way", "exit", "9", "--rank", "0", "pause"});
  const std::string file = folder.path() / "error.json";
  command.env["TORCHELASTIC_ERROR_FILE"] = file;
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(9));
  const json error = json::parse(read_file(file));
  CHECK(error["message"]["message"] == "lost my way");
  CHECK(error["message"]["errorCode"] == 9);
}

TEST_CASE("time in which the whole job was frozen is not silence", "[timeouts]") {
  Child ddprun(script({"--hang-timeout=2.5"}, "for i in 1 2 3 4 5 6 7 8; do echo tick; sleep 0.25; done"));
  REQUIRE(ddprun.wait_for_output("tick", 2));
  const auto frozen = ddprun.processes();
  for (const pid_t pid : frozen) ::kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(4000));
  ddprun.send_signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (const pid_t pid : frozen) ::kill(pid, SIGCONT);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  check_nothing_left(ddprun);
}

}  // namespace
}  // namespace ddprun::test
