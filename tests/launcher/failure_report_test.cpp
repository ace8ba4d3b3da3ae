#include "launcher/failure_report.h"

#include <csignal>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

using test::ContainsSubstring;

FailureReport sample() {
  FailureReport report;
  report.program = "train.py";
  report.host = "node1";
  report.root_cause = {3,  1,    123, ExitStatus::exited(7), std::chrono::system_clock::from_time_t(0),
                       {}, false};
  return report;
}

TEST_CASE("the report names what is known of the root cause", "[failure_report]") {
  FailureReport report = sample();
  report.root_cause.error.error = WorkerError{"ValueError: two\nlines", "", 0};
  const std::string text = describe(report);
  CHECK_THAT(text, ContainsSubstring("train.py FAILED"));
  CHECK_THAT(text, ContainsSubstring("rank      : 3 (local_rank: 1, pid: 123)"));
  CHECK_THAT(text, ContainsSubstring("ended by  : exit code 7\n"));
  CHECK_THAT(text, ContainsSubstring("host      : node1"));
  CHECK_THAT(text, ContainsSubstring("1970-01-01 00:00:00 UTC"));
  CHECK_THAT(text, ContainsSubstring("error     : ValueError: two\n              lines\n"));
  CHECK(text.find("Other Failures") == std::string::npos);
  CHECK(text.find("ended by ddprun") == std::string::npos);
}

TEST_CASE("the report lists other failures and the ranks that ddprun ended", "[failure_report]") {
  FailureReport report = sample();
  report.others = {{0, 0, 120, ExitStatus::killed(SIGSEGV), {}, {}, true}};
  report.ended_by_us = {1, 2};
  const std::string text = describe(report);
  CHECK_THAT(text,
             ContainsSubstring("rank 0 (local_rank: 0, pid: 120): signal 11 (SIGSEGV), after ddprun told"));
  CHECK_THAT(text, ContainsSubstring("ended by ddprun: rank 1, 2\n"));
}

TEST_CASE("the report says what may have sent a SIGKILL that was not ours", "[failure_report]") {
  FailureReport report = sample();
  CHECK(describe(report).find("OOM") == std::string::npos);
  report.root_cause.status = ExitStatus::killed(SIGKILL);
  CHECK_THAT(describe(report), ContainsSubstring("possibly the OOM killer"));
}

TEST_CASE("the report shows a broken error file as such", "[failure_report]") {
  FailureReport report = sample();
  report.root_cause.error.problem = "is not a regular file";
  CHECK_THAT(describe(report), ContainsSubstring("the worker's error file is not a regular file"));
}

TEST_CASE("no byte of a worker drives the terminal", "[failure_report]") {
  FailureReport report = sample();
  report.program = "a\x1b]0;title\x07";
  report.root_cause.error.error = WorkerError{"\x1b[2J\rgone", "", 0};
  const std::string text = describe(report);
  for (const char byte : {'\x1b', '\x07', '\r'}) CHECK(text.find(byte) == std::string::npos);
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

}  // namespace
}  // namespace ddprun
