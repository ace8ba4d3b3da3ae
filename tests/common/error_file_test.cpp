#include <ddprun/common/error_file.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using test::ContainsSubstring;

ErrorFileContent read_text(const std::string& text) {
  const TempDir folder;
  write_file_atomic(folder.path() / "error.json", text);
  return read_error_file(folder.path() / "error.json");
}

TEST_CASE("an error file is read back as it was written", "[error_file]") {
  const TempDir folder;
  const auto path = folder.path() / "error.json";
  write_error_file(path, {"ValueError: \"quotes\"\nand lines", "File x, line 1", 1700000000});
  const auto content = read_error_file(path);
  REQUIRE(content.error);
  CHECK(content.problem.empty());
  CHECK(content.error->message == "ValueError: \"quotes\"\nand lines");
  CHECK(content.error->call_stack == "File x, line 1");
  CHECK(content.error->timestamp == 1700000000);
}

TEST_CASE("how the worker ended is written as torchrun does, if it is known", "[error_file]") {
  const TempDir folder;
  const auto path = folder.path() / "error.json";
  write_error_file(path, {"E: x", "", 1, -9});
  CHECK(read_file(path) == R"({"message":{"errorCode":-9,"extraInfo":{"py_callstack":"","timestamp":"1"},)"
                           R"("message":"E: x"}})");
  CHECK(read_error_file(path).error->error_code == -9);
  write_error_file(path, {"E: x", "", 1});
  CHECK(read_file(path).find("errorCode") == std::string::npos);
  CHECK_FALSE(read_error_file(path).error->error_code);
  CHECK_FALSE(read_text(R"({"message": {"message": "text", "errorCode": "9"}})").error->error_code);
}

TEST_CASE("the error file of another user is not believed", "[error_file]") {
  if (::geteuid() != 0) test::skip("only root can make a file of another user");
  const TempDir folder;
  const auto path = folder.path() / "error.json";
  write_error_file(path, {"E: x", "", 1});
  REQUIRE(::chmod(folder.path().c_str(), 0711) == 0);
  REQUIRE(::seteuid(65534) == 0);
  const auto content = read_error_file(path);
  REQUIRE(::seteuid(0) == 0);
  CHECK(content.problem == "belongs to another user");
  CHECK_FALSE(content.error);
}

TEST_CASE("bytes that are not UTF-8 do not keep an error from being written", "[error_file]") {
  const TempDir folder;
  write_error_file(folder.path() / "error.json", {"bad \xff byte", "", 0});
  const auto content = read_error_file(folder.path() / "error.json");
  REQUIRE(content.error);
  CHECK_THAT(content.error->message, ContainsSubstring("bad "));
}

TEST_CASE("the older formats of torch elastic are understood", "[error_file]") {
  for (const char* text :
       {R"({"message": "text", "timestamp": 10})", R"({"message": "text", "timestamp": "10"})"}) {
    const auto content = read_text(text);
    REQUIRE(content.error);
    CHECK(content.error->message == "text");
    CHECK(content.error->timestamp == 10);
  }
}

TEST_CASE("missing fields and fields of another type are ignored", "[error_file]") {
  for (const char* text :
       {R"({"message": {"message": "text"}})", R"({"message": {"message": "text", "extraInfo": 7}})",
        R"({"message": {"message": "text", "extraInfo": {"timestamp": null}}})"}) {
    const auto content = read_text(text);
    REQUIRE(content.error);
    CHECK(content.error->message == "text");
    CHECK(content.error->timestamp == 0);
  }
  CHECK(read_text(R"({"message": 5})").error->message == "5");
}

TEST_CASE("numbers that do not fit count as missing", "[error_file]") {
  for (const char* number : {"1e300", "-1e300", "18446744073709551615", "9223372036854775807"})
    CHECK(read_text(std::string(R"({"message": "text", "timestamp": )") + number + "}").error->timestamp ==
          0);
  CHECK(read_text(R"({"message": "text", "timestamp": 1.7e9})").error->timestamp == 1700000000);
  for (const char* number : {"4294967305", "18446744073709551607", "-4294967305", "1.5"})
    CHECK_FALSE(read_text(std::string(R"({"message": {"errorCode": )") + number + "}}").error->error_code);
}

TEST_CASE("an empty or missing error file is accepted", "[error_file]") {
  const auto missing = read_error_file("/nowhere/error.json");
  CHECK_FALSE(missing.error);
  CHECK(missing.problem.empty());
  CHECK_FALSE(read_text("").error);
  CHECK(read_text("").problem.empty());
}

TEST_CASE("what is not an error file is said in one line", "[error_file]") {
  for (const std::string& text :
       {std::string("garbage"), std::string("[1]"), std::string("{}"), std::string("\0\0", 2),
        std::string(R"({"message": )"), std::string(1 << 17, ' ')}) {
    const auto content = read_text(text);
    CHECK_FALSE(content.error);
    CHECK_FALSE(content.problem.empty());
    CHECK(content.problem.find('\n') == std::string::npos);
  }
}

TEST_CASE("JSON that is nested deep is a problem, for a small stack too", "[error_file]") {
  const std::string deep(32000, '[');
  for (const std::string& text :
       {R"({"message": )" + deep, R"({"message": )" + deep + std::string(deep.size(), ']') + "}"}) {
    const auto content = read_text(text);
    CHECK_FALSE(content.error);
    CHECK_THAT(content.problem, ContainsSubstring("is nested deeper than 32 levels"));
  }
  CHECK(read_text(R"({"message": [[[["text"]]]]})").error->message == R"([[[["text"]]]])");
}

TEST_CASE("numbers that are out of every range count as not given", "[error_file]") {
  for (const char* time : {"1e300", "-1e300", "-1", "18446744073709551615", R"("1e300")", R"("nan")",
                           "253402300800", R"("99999999999999999999")"}) {
    CAPTURE(time);
    CHECK(read_text(R"({"message": "text", "timestamp": )" + std::string(time) + "}").error->timestamp == 0);
  }
  CHECK(read_text(R"({"message": "text", "timestamp": 1700000000.9})").error->timestamp == 1700000000);
  CHECK_FALSE(read_text(R"({"message": {"message": "text", "errorCode": 5000000000}})").error->error_code);
  CHECK(read_text(R"({"message": {"message": "text", "errorCode": -9}})").error->error_code == -9);
}

TEST_CASE("FIFOs, links and folders are neither followed nor waited for", "[error_file]") {
  const TempDir folder;
  const auto fifo = folder.path() / "fifo";
  const auto link = folder.path() / "link";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  REQUIRE(::symlink("/etc/passwd", link.c_str()) == 0);
  for (const auto& path : {fifo, link, folder.path()}) {
    const auto content = read_error_file(path);
    CHECK_FALSE(content.error);
    CHECK_FALSE(content.problem.empty());
  }
}

TEST_CASE("an error file replaces nothing but a file", "[error_file]") {
  const TempDir folder;
  const auto pipe = folder.path() / "pipe", link = folder.path() / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink("/dev/null", link);
  for (const auto& path : {pipe, link}) write_error_file(path, {"text", "", 1, {}});
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("a wait status with an exit code keeps all 256 codes", "[exit_status]") {
  for (int code = 0; code < 256; ++code) {
    const ExitStatus status = ExitStatus::from_wait_status(W_EXITCODE(code, 0));
    CHECK(status == ExitStatus::exited(code));
    CHECK(to_exit_code(status) == code);
    CHECK(status.success() == (code == 0));
    CHECK(describe(status) == "exit code " + std::to_string(code));
  }
}

TEST_CASE("a wait status with a signal keeps every signal", "[exit_status]") {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const ExitStatus status = ExitStatus::from_wait_status(W_EXITCODE(0, signal));
    CHECK(status == ExitStatus::killed(signal));
    CHECK(to_exit_code(status) == 128 + signal);
    CHECK_FALSE(status.success());
  }
}

TEST_CASE("a core dump is seen and said", "[exit_status]") {
  const ExitStatus status = ExitStatus::from_wait_status(SIGSEGV | 0x80);
  CHECK(status == ExitStatus::killed(SIGSEGV, true));
  CHECK(describe(status) == "signal 11 (SIGSEGV), core dumped");
  CHECK(to_exit_code(status) == 139);
}

TEST_CASE("signals have names, real-time and impossible ones too", "[exit_status]") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(SIGRTMIN + 1) == "SIGRTMIN+1");
  CHECK(signal_name(99) == "signal 99");
}

}  // namespace
}  // namespace ddprun
