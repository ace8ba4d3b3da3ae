// What workers say of themselves through DDPRUN_STATUS_FD, and what ddprun makes of it.

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ddprun/common/files.h>
#include "tests/integration/node_job.h"

namespace ddprun::test {
namespace {

using nlohmann::json;

/// Ranks in step, as collectives keep them: each takes its own time for data and compute, and then waits for
/// the slowest (0.05 s a step). It goes on for six seconds.
Command training(std::vector<std::string> flags, const std::string& compute_of, const std::string& data_of,
                 const std::string& end = "") {
  const std::string text =
      "import ddprun, os, sys, time\n"
      "rank = int(os.environ['RANK'])\n"
      "compute, data = " +
      compute_of + ", " + data_of +
      "\n"
      "for step in range(1, 121):\n"
      "    time.sleep(0.05)\n"
      "    ddprun.status(step=step, steps=120, phase='train', seconds={'data': step * data,\n"
      "        'compute': step * compute, 'communication': step * (0.05 - compute - data)})\n" +
      end;
  flags.insert(flags.begin(), "--nproc-per-node=4");
  Command command = ddprun_command(flags);
  command.argv.insert(command.argv.end(), {"python3", "-c", text});
  command.env["PYTHONPATH"] = DDPRUN_SOURCE_DIR "/packaging";
  return command;
}

TEST_CASE("a rank whose compute takes longer is named, live and in the report", "[stragglers]") {
  const TempDir folder;
  const auto result = folder.path() / "result.json", events = folder.path() / "events.json";
  const Finished run(training({"--result-json=" + result.string(), "--events-json=" + events.string()},
                              "0.02 if rank != 2 else 0.04", "0.001", "sys.exit(3 if rank == 0 else 0)"));
  CHECK(run.status == ExitStatus::exited(3));
  const std::string line = "rank 2 is 2.0 times slower than the median since step ";
  const auto live = run.err.find(line), report = run.err.find("Root Cause");
  CHECK(live < report);
  REQUIRE(report != std::string::npos);
  CHECK(run.err.find(line, report) != std::string::npos);
  CHECK_THAT(run.err, ContainsSubstring(": compute, not data\n"));
  CHECK_THAT(run.err, !ContainsSubstring("rank 1 is"));

  const json stragglers = json::parse(read_file(result))["attempts"][0]["stragglers"];
  REQUIRE(stragglers.size() == 1);
  CHECK(stragglers[0]["rank"] == 2);
  CHECK(stragglers[0]["factor"].get<double>() == Approx(2).epsilon(0.1));
  CHECK(stragglers[0]["cause"] == "compute");
  CHECK(stragglers[0]["since_step"] > 0);
  std::istringstream lines(read_file(events));
  json event;
  for (std::string text; std::getline(lines, text) && event["event"] != "straggler";)
    event = json::parse(text);
  CHECK(event["event"] == "straggler");
  CHECK(event["rank"] == 2);
  CHECK(event["cause"] == "compute");
}

TEST_CASE("a rank that waits for its data is named for that, and ranks in step are not", "[stragglers]") {
  CHECK_THAT(Finished(training({}, "0.01", "0.03 if rank == 1 else 0.001")).err,
             ContainsSubstring("rank 1 is 3.6 times slower than the median since step ") &&
                 ContainsSubstring(": data, not compute\n"));
  CHECK_THAT(Finished(training({}, "0.01 + 0.001 * rank", "0.001")).err, !ContainsSubstring("slower"));
}

TEST_CASE("the ledger is of the worker that says most", "[status]") {
  const TempDir folder;
  const auto result = folder.path() / "result.json";
  const Finished run(
      script({"--nproc-per-node=2", "--result-json=" + result.string()},
             "echo \"{\\\"seconds\\\": {\\\"compute\\\": $RANK}}\" > /proc/self/fd/$DDPRUN_STATUS_FD"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(json::parse(read_file(result))["ledger"]["compute"] == 1.0);
}

TEST_CASE("a clock that is set back does not shorten a job", "[status]") {
  const TempDir folder;
  const auto result = folder.path() / "result.json";
  Command command = script({"--result-json=" + result.string()}, "sleep 3");
  command.env["LD_PRELOAD"] = CLOCK_SET_BACK;
  command.env["ASAN_OPTIONS"] = "verify_asan_link_order=0";
  CHECK(Finished(command).status == ExitStatus::exited(0));
  CHECK(json::parse(read_file(result))["duration_s"] > 2.9);
}

TEST_CASE("a worker that writes garbage to its status pipe does no harm", "[status]") {
  const Finished run(script({"--nproc-per-node=2"},
                            "yes | head -c 1000000 > /proc/self/fd/$DDPRUN_STATUS_FD; "
                            "head -c 200000 /dev/zero > /proc/self/fd/$DDPRUN_STATUS_FD; echo done"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("done\n", run.out) == 2);
  CHECK(run.err.empty());
}

TEST_CASE("a web page that has made its own name lead to this host cannot read a job's status", "[metrics]") {
  const std::string ask =
      "import http.client, sys\n"
      "for path in '/metrics', '/status', '/report':\n"
      "    for host in 'localhost', 'evil.example':\n"
      "        connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]))\n"
      "        connection.request('GET', path, headers={'Host': host})\n"
      "        answer = connection.getresponse()\n"
      "        print(path, host, answer.status, answer.read().decode() if answer.status == 421 else '')\n";
  const std::string port = free_port();
  const Finished run(ddprun_command({"--metrics-port=" + port, "python3", "-c", ask, port}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.out, ContainsSubstring("/metrics localhost 200"));
  CHECK_THAT(run.out, ContainsSubstring("/status localhost 200"));
  CHECK_THAT(run.out, ContainsSubstring("/report localhost 404"));
  CHECK(count_of("evil.example 421 expected the header Host to name this host (an address, localhost or ",
                 run.out) == 3);
}

/// A program that begins at the step in its argument, and dies after that of attempt i in `ends`.
Command dying(std::vector<std::string> flags, const std::string& ends,
              const std::string& status = "step=step") {
  const std::string text =
      "import ddprun, os, sys, time\n"
      "attempt, rank = int(os.environ['TORCHELASTIC_RESTART_COUNT']), int(os.environ['RANK'])\n"
      "for step in range(1, " +
      ends +
      "[attempt] + 1):\n"
      "    if rank == 0: ddprun.status(" +
      status +
      ")\n"
      "if rank == 0: sys.exit(10 + attempt)\n"
      "time.sleep(1000)\n";
  flags.insert(flags.begin(), "--max-restarts=4");
  Command command = ddprun_command(flags);
  command.argv.insert(command.argv.end(), {"python3", "-c", text});
  command.env["PYTHONPATH"] = DDPRUN_SOURCE_DIR "/packaging";
  return command;
}

TEST_CASE("a job whose restarts bring no new step ends and says what each attempt died of", "[restarts]") {
  const Finished run(dying({"--nproc-per-node=2", "--max-stalled-restarts=2"}, "[5, 8, 8, 0, 9]"));
  CHECK(run.status == ExitStatus::exited(13));
  CHECK_THAT(run.err,
             ContainsSubstring("warning: not restarted: 2 restarts in a row made no progress after step 8 "
                               "(--max-stalled-restarts)\n"));
  CHECK_THAT(run.err,
             ContainsSubstring("warning: attempt 1, which reached step 8: rank 0 failed: exit code 11\n"));
  CHECK_THAT(run.err,
             ContainsSubstring("warning: attempt 2, which reached step 8: rank 0 failed: exit code 12\n"));
  CHECK_THAT(run.err, ContainsSubstring("warning: attempt 3, without a step: rank 0 failed: exit code 13\n"));
  CHECK_THAT(run.err, !ContainsSubstring("attempt 0"));
}

TEST_CASE("a job that comes further, or does not say how far, uses all its restarts", "[restarts]") {
  for (const auto& [ends, status] : {std::pair<const char*, const char*>{"[1, 2, 3, 4, 5]", "step=step"},
                                     {"[3, 3, 3, 3, 3]", "loss=1"},
                                     {"[5, 4, 3, 2, 1]", "step=step, epoch=attempt"},
                                     {"[5, 5, 5, 5, 5]", "step=step % 3"}}) {
    const Finished run(dying({"--max-stalled-restarts=1"}, ends, status));
    INFO(ends << status);
    CHECK(run.status == ExitStatus::exited(14));
    CHECK_THAT(run.err, ContainsSubstring("not restarted: --max-restarts=4 is used up"));
  }
  CHECK_THAT(Finished(script({"--max-stalled-restarts=1"}, "true")).err,
             ContainsSubstring("--max-stalled-restarts has no effect without --max-restarts"));
}

TEST_CASE("on several nodes, too, a job ends whose restarts bring no new step", "[restarts]") {
  NodeJob nodes;
  for (int i = 0; i < 2; ++i) {
    auto flags = nodes.flags({"--nnodes=2", "--max-stalled-restarts=1", "--node-rank=" + std::to_string(i)});
    nodes.add(dying(flags, "[5, 5, 5, 5, 5]"));
  }
  for (const ExitStatus& end : nodes.wait()) CHECK(end == ExitStatus::exited(11));
  CHECK_THAT(nodes.node(0).err(),
             ContainsSubstring("1 restart made no progress after step 5 (--max-stalled-restarts); "
                               "attempt 0, which reached step 5: rank 0 failed: exit code 10"));
}

}  // namespace
}  // namespace ddprun::test
