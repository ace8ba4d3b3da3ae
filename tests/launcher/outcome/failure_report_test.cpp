#include "launcher/outcome/failure_report.h"

#include <csignal>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;

FailureReport sample_report() {
  FailureReport report;
  report.program = "train.py";
  report.host = "node1";
  report.root_cause = {3,  1,    123, ExitStatus::exited(7), std::chrono::system_clock::from_time_t(0),
                       {}, false};
  return report;
}

FailureReport sample_report(const WorkerError& error) {
  FailureReport report = sample_report();
  report.root_cause.error.error = error;
  return report;
}

std::string many_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i) + ".\n";
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("the report names what is known of the root cause", "[failure_report]") {
  const std::string text = describe(sample_report(WorkerError{"ValueError: two\nlines", "", 0}));
  CHECK(text == R"(================================================================================
train.py FAILED
--------------------------------------------------------------------------------
Root Cause (first observed failure):
  rank      : 3 (local_rank: 1, pid: 123)
  outcome   : exit code 7
  error     : ValueError: two
              lines
  host      : node1
  time      : 1970-01-01 00:00:00 UTC
================================================================================
)");
}

TEST_CASE("the report shows where to look further, if there is anything", "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.core = "/data/core.123";
  report.root_cause.logs = {"/logs/1/stdout.log", "/logs/1/stderr.log"};
  report.attempt = 2;
  report.max_restarts = 3;
  const std::string text = describe(report);
  CHECK_THAT(text, ContainsSubstring("core file : /data/core.123\n"));
  CHECK_THAT(text, ContainsSubstring("log files : /logs/1/stdout.log\n              /logs/1/stderr.log\n"));
  CHECK_THAT(text, ContainsSubstring("attempt   : 2 (--max-restarts=3)\n"));
}

TEST_CASE("the report lists other failures and the ranks that ddprun ended", "[failure_report]") {
  FailureReport report = sample_report();
  report.others = {{0, 0, 120, ExitStatus::killed(SIGSEGV), {}, {}, true}};
  report.ended_by_us = {1, 2, 4, 5, 6, 8};
  const std::string text = describe(report);
  CHECK_THAT(text,
             ContainsSubstring("rank 0 (local_rank: 0, pid: 120): signal 11 (SIGSEGV), after ddprun told"));
  CHECK_THAT(text, ContainsSubstring("ended by ddprun: rank 1-2, 4-6, 8\n"));
}

TEST_CASE("the report shows errors from before the failure of workers that had not exited",
          "[failure_report]") {
  FailureReport report = sample_report();
  report.not_exited = {{1, 1, 120, ExitStatus::killed(SIGTERM), {}, {}, true}};
  report.not_exited[0].error.error = WorkerError{"E: the cause", "", 0};
  CHECK_THAT(describe(report), ContainsSubstring(R"(
--------------------------------------------------------------------------------
Had reported an error before that, but had not exited:
  rank 1 (local_rank: 1, pid: 120): signal 15 (SIGTERM), after ddprun told it to end
    E: the cause
)"));
}

TEST_CASE("ranks with the root cause's error are one line", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"E: no such file", "", 0});
  for (int rank = 4; rank < 12; ++rank) {
    report.others.push_back({rank, rank, 120, ExitStatus::exited(7), {}, {}, rank > 5});
    report.others.back().error.error = WorkerError{"E: no such file", "its own stack", 1};
  }
  report.others[2].error.error->message = "E: another";
  report.others[3].status = ExitStatus::exited(1);
  report.others[4].error.error.reset();
  CHECK_THAT(describe(report), ContainsSubstring(R"(
--------------------------------------------------------------------------------
Other Failures:
  the same error: rank 4-5, 9-11
  rank 6 (local_rank: 6, pid: 120): exit code 7, after ddprun told it to end
    E: another
  rank 7 (local_rank: 7, pid: 120): exit code 1, after ddprun told it to end
    E: no such file
  rank 8 (local_rank: 8, pid: 120): exit code 7, after ddprun told it to end
================================================================================
)"));
}

TEST_CASE("thousands of failures do not bury the first one", "[failure_report]") {
  FailureReport report = sample_report();
  for (int rank = 4; rank < 4096; ++rank)
    report.others.push_back({rank, rank, 1, ExitStatus::exited(1), {}, {}, false});
  const std::string text = describe(report);
  CHECK(std::count(text.begin(), text.end(), '\n') < 30);
  CHECK_THAT(text, ContainsSubstring("  and 4084 more\n"));
}

TEST_CASE("the report says what may have sent a SIGKILL that was not ours", "[failure_report]") {
  FailureReport report = sample_report();
  CHECK_FALSE(has(describe(report), "hint"));
  report.root_cause.status = ExitStatus::killed(SIGKILL);
  CHECK_THAT(describe(report), ContainsSubstring("hint      : not sent by ddprun"));
  CHECK_THAT(describe(report), ContainsSubstring("OOM killer\n"));
  report.root_cause.out_of_memory = "out of memory: the kernel killed it";
  CHECK_THAT(describe(report), ContainsSubstring("memory    : out of memory: the kernel killed it\n"));
  CHECK_FALSE(has(describe(report), "hint"));
}

TEST_CASE("a hint tells what a signal usually means, from a shell's exit code too", "[failure_report]") {
  CHECK_THAT(end_hint(ExitStatus::killed(SIGBUS)), ContainsSubstring("/dev/shm"));
  CHECK_THAT(end_hint(ExitStatus::exited(135)), ContainsSubstring("/dev/shm"));
  CHECK_THAT(end_hint(ExitStatus::exited(137)), ContainsSubstring("shells report SIGKILL this way"));
  CHECK_THAT(end_hint(ExitStatus::exited(127)), ContainsSubstring("not found"));
  for (const int code : {1, 2, 3, 124, 128, 138, 200, 255}) CHECK(end_hint(ExitStatus::exited(code)).empty());
}

TEST_CASE("no line of ours is wider than 80 columns", "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.out_of_memory = std::string("words ") + many_lines(30);
  for (int signal = 1; signal < NSIG; ++signal) {
    report.root_cause.status = ExitStatus::killed(signal, true);
    const std::string text = describe(report);
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = text.find('\n', begin);
      CHECK(end - begin <= 80);
      begin = end + 1;
    }
  }
}

TEST_CASE("the report shows a broken error file as such", "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.error.problem = "is not a regular file";
  CHECK_THAT(describe(report), ContainsSubstring("the worker's error file is not a regular file"));
}

TEST_CASE("a call stack is shown with its first and its last lines", "[failure_report]") {
  const std::string text = describe(sample_report(WorkerError{"E: x", many_lines(100), 0}));
  CHECK_THAT(text, ContainsSubstring("  call stack:\n    line 0.\n"));
  CHECK_THAT(text, ContainsSubstring("    line 7.\n    ... (76 lines left out)\n    line 84.\n"));
  CHECK_THAT(text, ContainsSubstring("    line 99.\n==="));
}

TEST_CASE("a call stack that stderr shows already is not repeated", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"E: x", "Traceback:\n  f()\nE: x\n", 0});
  CHECK(has(describe(report), "call stack"));
  report.root_cause.last_lines = {"before", "Traceback:", "  f()", "E: x"};
  CHECK_FALSE(has(describe(report), "call stack"));
  CHECK_THAT(describe(report), ContainsSubstring("    | Traceback:\n    |   f()\n    | E: x\n"));
}

TEST_CASE("a traceback that Python prints with outer frames is shown once", "[failure_report]") {
  FailureReport report = sample_report(
      WorkerError{"E: x", "Traceback (most recent call last):\n  inner 1\n  inner 2\n  inner 3\nE: x\n", 0});
  report.root_cause.last_lines = {
      "Traceback (most recent call last):", "  outer", "  inner 1", "  inner 2", "  inner 3", "E: x"};
  CHECK_FALSE(has(describe(report), "call stack"));
  CHECK(has(describe(report), "    |   outer\n"));
}

TEST_CASE("an error that its program also prints is shown once", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"weights.pt: is not a zip", "", 0});
  report.root_cause.last_lines = {"worker: error: weights.pt: is not a zip"};
  CHECK_FALSE(has(describe(report), "last lines"));
  report.root_cause.last_lines.insert(report.root_cause.last_lines.begin(), "epoch 1");
  CHECK(has(describe(report), "  last lines of its stderr:\n    | epoch 1\n"));
  CHECK_FALSE(has(describe(report), "worker: error"));
}

TEST_CASE("a long traceback is shown whole, and not its end again", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"E: x", many_lines(24), 0});
  for (int i = 10; i < 24; ++i) report.root_cause.last_lines.push_back("line " + std::to_string(i) + ".");
  report.root_cause.last_lines.push_back("bye");
  const std::string text = describe(report);
  CHECK(has(text, "  call stack:\n    line 0.\n"));
  CHECK(has(text, "    line 23.\n  last lines of its stderr:\n    | bye\n"));
}

TEST_CASE("a usage error is one line, with the program's own words", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"--epochs: expected a number", "stack", 0});
  report.root_cause.status = ExitStatus::exited(2);
  report.root_cause.last_lines = {"worker: error: --epochs: expected a number"};
  report.others = {{0, 0, 120, ExitStatus::exited(2), {}, {}, true}};
  CHECK(describe(report) == "train.py FAILED: rank 3 exited with code 2: --epochs: expected a number\n");
  report.root_cause.error = {};
  report.root_cause.last_lines = {"usage: train.py", "train.py: error: no such flag", ""};
  CHECK(describe(report) == "train.py FAILED: rank 3 exited with code 2: train.py: error: no such flag\n");
  report.root_cause.last_lines.clear();
  CHECK(describe(report) == "train.py FAILED: rank 3 exited with code 2\n");
}

TEST_CASE("one of ddprun's flags after a script that fails with 2 is named", "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.status = ExitStatus::exited(2);
  report.misplaced_flag = "--tee";
  CHECK(describe(report) ==
        "train.py FAILED: rank 3 exited with code 2\n"
        "ddprun's own flags, such as --tee, go before train.py\n");
  report.root_cause.status = ExitStatus::exited(1);
  CHECK_FALSE(has(describe(report), "--tee"));
}

TEST_CASE("what the console shows already is not repeated, but for the line that says why",
          "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.err_shown = true;
  report.root_cause.last_lines = {"Traceback (most recent call last):", "  f()", "ValueError: bad",
                                  "[W] the process group was not destroyed"};
  CHECK_THAT(describe(report), ContainsSubstring("  stderr    : ValueError: bad\n"));
  CHECK_FALSE(has(describe(report), "f()"));
  report.root_cause.last_lines = {"line 1", "line 2"};
  CHECK_THAT(describe(report), ContainsSubstring("  stderr    : line 2\n"));
  CHECK_FALSE(has(describe(report), "line 1"));
}

TEST_CASE("a traceback is shown once, by the worker or in the report", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"E: x", "Traceback:\n  f()\n  g()\n  h()\nE: x\n", 0});
  report.root_cause.err_shown = true;
  CHECK(has(describe(report), "call stack"));  // it has written nothing
  report.root_cause.last_lines = {"Traceback:", "  main()", "  f()", "  g()", "  h()", "E: x", "bye"};
  CHECK_FALSE(has(describe(report), "h()"));
  CHECK_FALSE(has(describe(report), "stderr"));
  CHECK_THAT(describe(report), ContainsSubstring("  error     : E: x\n"));
  report.root_cause.last_lines.clear();
  report.root_cause.err_read = false;  // it has the console to itself; whether it printed one is not known
  CHECK(has(describe(report), "call stack"));
}

TEST_CASE("a hang has a report too, without a word of how ddprun ended it", "[failure_report]") {
  FailureReport report = sample_report();
  report.hang = {"no sign of life for 5 s (--hang-timeout)", "nor from 1 more"};
  report.stacks = "/logs/stacks_3.txt";
  report.root_cause.asked_to_end = true;
  report.ended_by_us = {0};
  for (const auto& status :
       {std::optional(ExitStatus::killed(SIGABRT)), std::optional(ExitStatus::exited(2))}) {
    report.root_cause.status = status;
    CHECK(describe(report) ==
          R"(================================================================================
train.py FAILED
--------------------------------------------------------------------------------
Hang:
  rank      : 3 (local_rank: 1, pid: 123)
  outcome   : no sign of life for 5 s (--hang-timeout)
              nor from 1 more
  host      : node1
  time      : 1970-01-01 00:00:00 UTC
  stacks    : /logs/stacks_3.txt
--------------------------------------------------------------------------------
ended by ddprun: rank 0
================================================================================
)");
  }
  report.root_cause.status.reset();
  CHECK_FALSE(has(describe(report), "  time      : "));
}

TEST_CASE("the root cause ended by itself", "[failure_report]") {
  FailureReport report = sample_report();
  report.root_cause.asked_to_end = true;
  for (const int code : {7, 2}) {
    report.root_cause.status = ExitStatus::exited(code);
    CHECK_FALSE(has(describe(report), "told it to end"));
  }
}

TEST_CASE("the last twenty lines of stderr are shown, bars in their last state", "[failure_report]") {
  FailureReport report = sample_report();
  for (int i = 0; i < 30; ++i) report.root_cause.last_lines.push_back("line " + std::to_string(i) + ".");
  report.root_cause.last_lines.insert(report.root_cause.last_lines.end(), {"", "10%\r20%\r30%\r"});
  const std::string text = describe(report);
  CHECK_THAT(text, ContainsSubstring("stderr:\n    | line 12.\n"));
  CHECK_THAT(text, ContainsSubstring("    | line 29.\n    |\n    | 30%\n==="));
}

TEST_CASE("a line without an end is cut", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{std::string(10'000, 'x'), std::string(10'000, 'y'), 0});
  report.root_cause.last_lines = {std::string(100'000, 'z')};
  CHECK(describe(report).size() < 3'000);
}

TEST_CASE("no byte of a worker drives the terminal", "[failure_report]") {
  const std::string evil =
      "\x1b[2J\x1b]0;title\x07\rgone \xc2\x9b"
      "31m \x9b";
  FailureReport report = sample_report(WorkerError{evil, evil + "\nsecond", 0});
  report.program = evil;
  report.host = evil;
  report.root_cause.core = evil;
  report.root_cause.last_lines = {evil};
  report.root_cause.logs = {evil};
  report.others = {{0, 0, 120, ExitStatus::exited(1), {}, {WorkerError{evil, "", 0}, evil}, false}};
  const std::string text = describe(report);
  for (const char* bytes : {"\x1b", "\x07", "\r", "\x9b"}) CHECK_FALSE(has(text, bytes));
}

TEST_CASE("an end as told is success, the signal, or the exit code that stands for it", "[failure_report]") {
  const std::vector<int> signals = {SIGTERM, SIGKILL};
  CHECK(ended_as_told(ExitStatus::exited(0), signals));
  CHECK(ended_as_told(ExitStatus::killed(SIGTERM), signals));
  CHECK(ended_as_told(ExitStatus::killed(SIGKILL), signals));
  CHECK(ended_as_told(ExitStatus::exited(143), signals));
  CHECK_FALSE(ended_as_told(ExitStatus::exited(1), signals));
  CHECK_FALSE(ended_as_told(ExitStatus::killed(SIGSEGV), signals));
  CHECK_FALSE(ended_as_told(ExitStatus::killed(SIGKILL), {SIGTERM}));
}

TEST_CASE("a launcher above is told the root cause's error and how it ended", "[failure_report]") {
  FailureReport report = sample_report(WorkerError{"ValueError: x", "stack", 5});
  CHECK(error_for_parent(report).message == "ValueError: x");
  CHECK(error_for_parent(report).call_stack == "stack");
  CHECK(error_for_parent(report).error_code == 7);
  report.root_cause.status = ExitStatus::killed(SIGSEGV);
  report.root_cause.error = {};
  CHECK(error_for_parent(report).message == "rank 3 (pid 123) of train.py ended by signal 11 (SIGSEGV)");
  CHECK(error_for_parent(report).error_code == -11);
}

TEST_CASE("the error is passed on to the launcher above", "[failure_report]") {
  const TempDir folder;
  const auto path = folder.path() / "error.json";
  CHECK(pass_error_to_parent(sample_report(WorkerError{"E: x", "", 1}), path.string()).empty());
  const auto content = read_error_file(path);
  REQUIRE(content.error);
  CHECK(content.error->message == "E: x");
  CHECK(content.error->error_code == 7);
  CHECK_THAT(pass_error_to_parent(sample_report(), "/nowhere/error.json"),
             ContainsSubstring("there is no folder /nowhere"));
}

std::string place(std::string_view pattern) { return core_place(pattern, 123, "/work"); }

TEST_CASE("a pattern that names a file is shown as a path", "[core_file]") {
  CHECK(place("core") == "/work/core");
  CHECK(place("core.%p") == "/work/core.%p");
  CHECK(place("/cores/%e.%p%%") == "/cores/%e.%p%%");
  CHECK(place("").empty());
}

TEST_CASE("a core that is handed on has a handler's name and a way to it", "[core_file]") {
  CHECK(place("|/usr/lib/systemd/systemd-coredump %P %u %g") ==
        "handed to systemd-coredump: coredumpctl info 123");
  CHECK(place("|/usr/share/apport/apport -p%p") == "handed to apport: see /var/crash");
  CHECK(place("|/bin/false") == "handed to false");
  CHECK(place("|") == "handed to ");
  CHECK(place("@@/run/core.socket") == "handed to /run/core.socket");
  CHECK(place("@") == "handed to ");
}

}  // namespace
}  // namespace ddprun::launcher
