// include/ddprun/report_error.h in a program that has nothing else of ours, read by our reader.

#include <sys/stat.h>

#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>

#include <ddprun/common/error_file.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/python.h"

namespace ddprun::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// The program failing in this way, and what it left.
struct Reporter {
  explicit Reporter(const std::vector<std::string>& way) {
    Command command{{REPORTER_PROGRAM}};
    command.argv.insert(command.argv.end(), way.begin(), way.end());
    command.env["TORCHELASTIC_ERROR_FILE"] = file.string();
    Child child(command);
    status = child.wait();
    err = child.err();
    if (fs::exists(file)) text = read_file(file);
    content = read_error_file(file);
    files = static_cast<int>(std::distance(fs::directory_iterator(folder.path()), {}));
  }
  std::string message() const { return content.error ? content.error->message : "none: " + content.problem; }

  TempDir folder;
  fs::path file = folder.path() / "error.json";
  ExitStatus status;
  std::string err, text;
  ErrorFileContent content;
  int files = 0;
};

TEST_CASE("an exception that leaves the program is reported, and the program fails with 1",
          "[report_error]") {
  const auto before = std::time(nullptr);
  const Reporter run({"throw", "bad \"shape\"\nand \\ more"});
  CHECK(run.status == ExitStatus::exited(1));
  CHECK_THAT(run.message(), ContainsSubstring("own::Failure: bad \"shape\"\nand \\ more"));
  CHECK(run.content.error->timestamp >= before);
  CHECK(run.content.error->timestamp <= std::time(nullptr));
  CHECK_THAT(run.err, ContainsSubstring("own::Failure: bad \"shape\""));
  CHECK(run.files == 1);
  CHECK(fs::status(run.file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("whatever is thrown has words", "[report_error]") {
  CHECK(Reporter({"throw-runtime-error", "x"}).message() == "std::runtime_error: x");
  CHECK_THAT(Reporter({"throw-string", "words"}).message(), ContainsSubstring("exception: words"));
  CHECK(Reporter({"throw-literal"}).message() == "exception: literal");
  CHECK(Reporter({"throw-int"}).message() == "int");
  CHECK_THAT(Reporter({"throw-nested"}).message(),
             ContainsSubstring("outer\ncaused by std::out_of_range: inner"));
}

TEST_CASE("a program that notices its failure itself reports it and goes on", "[report_error]") {
  const Reporter run({"report", "disk is full"});
  CHECK(run.status == ExitStatus::exited(5));
  CHECK(run.message() == "disk is full");
  CHECK(run.content.error->call_stack == "one\ntwo");
  CHECK(Reporter({"report-elsewhere"}).message() == "from elsewhere");
  CHECK(Reporter({"report-null"}).message() == "unknown error");
}

TEST_CASE("a program that does not throw keeps its exit code and reports nothing", "[report_error]") {
  for (const auto& [way, code] : std::map<std::string, int>{{"return", 3}, {"pthread-exit", 0}}) {
    const Reporter run({way});
    CHECK(run.status == ExitStatus::exited(code));
    CHECK(run.files == 0);
  }
}

TEST_CASE("control characters and broken UTF-8 make valid JSON", "[report_error]") {
  const Reporter run(
      {"report",
       "\x01\t\r\x1b\x7f \xc3\xbc \xf0\x9f\x98\x80 \xff \xc3 \xed\xa0\x80 \xf5\x80\x80\x80 \xe6\x97"});
  CHECK(json::accept(run.text));
  const std::string bad = "\xef\xbf\xbd";
  CHECK(run.message() == "\x01\t\r\x1b\x7f \xc3\xbc \xf0\x9f\x98\x80 " + bad + " " + bad + " " + bad + bad +
                             bad + " " + bad + bad + bad + bad + " " + bad + bad);
}

TEST_CASE("a message of any size fits the reader", "[report_error]") {
  const Reporter run({"throw-huge"});
  CHECK(run.text.size() < 64 * 1024);
  CHECK_THAT(run.message(), ContainsSubstring("std::runtime_error: \x01\x01"));
  CHECK_THAT(run.message(), ContainsSubstring("\x01..."));
}

TEST_CASE("an exception that nobody catches is reported before the program aborts", "[report_error]") {
  const Reporter run({"uncaught"});
  CHECK(run.status.signal == SIGABRT);
  CHECK(run.message() == "std::runtime_error: nobody catches this");
  CHECK(count_of("error: std::runtime_error", run.err) == 1);
  CHECK_THAT(run.err, ContainsSubstring("terminate called"));  // the handler that was there before
  const Reporter threads({"uncaught-in-threads"});
  CHECK(threads.status.signal == SIGABRT);
  CHECK(threads.message() == "std::runtime_error: in a thread");
  CHECK(count_of("error: std::runtime_error", threads.err) == 1);
  CHECK(Reporter({"terminate"}).message() == "std::terminate was called without an exception");
}

TEST_CASE("without a launcher, or with a file that cannot be, only stderr is told", "[report_error]") {
  const TempDir folder;
  fs::create_symlink("/etc/passwd", folder.path() / "link");
  const std::vector<std::optional<std::string>> files = {
      std::nullopt,           "",
      "/nowhere/error.json",  "/dev/null",
      folder.path().string(), (folder.path() / "link").string()};
  for (const auto& file : files) {
    Child child({{REPORTER_PROGRAM, "report", "words"}, {{"TORCHELASTIC_ERROR_FILE", file}}});
    CHECK(child.wait() == ExitStatus::exited(6));
    CHECK_THAT(child.err(), ContainsSubstring("error: words"));
  }
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(fs::is_symlink(folder.path() / "link"));
}

TEST_CASE("ddprun shows what the program reported", "[report_error]") {
  Child child(
      {{DDPRUN_PROGRAM, "--nproc-per-node=2", REPORTER_PROGRAM, "throw-runtime-error", "two\nlines"}});
  CHECK(child.wait() == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring("error     : std::runtime_error: two\n              lines\n"));
}

/// The names and kinds of everything in a JSON value.
json shape(const json& value) {
  if (!value.is_object()) return value.type_name();
  json names;
  for (const auto& [name, inner] : value.items()) names[name] = shape(inner);
  return names;
}

TEST_CASE("our writers and torch's @record write one format", "[report_error]") {
  const auto python = python_with("torch");
  const TempDir folder;
  const auto recorded = folder.path() / "recorded.json";    // by the worker
  const auto passed_on = folder.path() / "passed_on.json";  // by its launcher, to the launcher above
  Child child({{python, "-c",
                "import os, sys\n"
                "from torch.distributed.elastic.multiprocessing.errors import record\n"
                "from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler\n"
                "@record\n"
                "def main():\n"
                "    raise RuntimeError('gr\\u00fc\\u00dfe \"q\"\\n\\x01')\n"
                "try: main()\n"
                "except RuntimeError: pass\n"
                "file = os.environ['TORCHELASTIC_ERROR_FILE']\n"
                "os.environ['TORCHELASTIC_ERROR_FILE'] = sys.argv[1]\n"
                "ErrorHandler().dump_error_file(file, -9)\n",
                passed_on.string()},
               {{"TORCHELASTIC_ERROR_FILE", recorded.string()}}});
  CHECK(child.wait(std::chrono::seconds(120)) == ExitStatus::exited(0));
  const std::string words =
      "gr\xc3\xbc\xc3\x9f"
      "e \"q\"\n\x01";
  auto read = read_error_file(recorded);
  REQUIRE(read.error);
  CHECK(read.error->message == "RuntimeError: " + words);
  CHECK_THAT(read.error->call_stack, ContainsSubstring("Traceback (most recent call last)"));

  const Reporter run({"report", "RuntimeError: " + words});
  CHECK(run.message() == read.error->message);
  CHECK(shape(json::parse(run.text)) == shape(json::parse(read_file(recorded))));
  const auto ours = folder.path() / "ours.json";
  write_error_file(ours, *read.error);
  CHECK(json::parse(read_file(ours)) == json::parse(read_file(recorded)));
  read.error->error_code = -9;
  write_error_file(ours, *read.error);
  CHECK(json::parse(read_file(ours)) == json::parse(read_file(passed_on)));
}

}  // namespace
}  // namespace ddprun::test
