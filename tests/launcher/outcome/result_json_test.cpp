#include "launcher/outcome/result_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/events/events_json.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using test::ContainsSubstring;
namespace fs = std::filesystem;

const auto kDate = JobClock::Wall::time_point(1'700'000'000'500'000us);

JobRecord sample() {
  JobRecord record;
  record.version = "0.1.0";
  record.run_id = "run";
  record.program = {"a.py", "--api-key", "V"};
  record.exit_code = 139;
  record.outcome = WorkerFailed{};
  record.max_restarts = 1;
  record.restarts = 1;
  record.start = kDate;
  record.end = kDate + 1500ms;
  WorkerRecord failed;
  failed.rank = 1;
  failed.local_rank = 1;
  failed.pid = 77;
  failed.status = ExitStatus::killed(SIGSEGV, true);
  failed.start_ns = 5;
  failed.end_ns = 10;
  failed.error.error = WorkerError{"E: \xff", "", 0};
  failed.core = "/core";
  failed.last_lines = {"one", "two"};
  failed.logs = {"/logs/1/stderr.log"};
  WorkerRecord ended;
  ended.pid = 76;
  ended.status = ExitStatus::exited(143);
  ended.asked_to_end = true;
  record.attempts = {{0, 2000, 1, 2, Hung{}, std::nullopt, {}},
                     {1, 2001, 3, 11, WorkerFailed{}, 1, {ended, failed}}};
  return record;
}

TEST_CASE("dates are UTC with microseconds, before 1970 too", "[result_json]") {
  CHECK(utc_iso(kDate) == "2023-11-14T22:13:20.500000Z");
  CHECK(utc_iso(JobClock::Wall::time_point(-1us)) == "1969-12-31T23:59:59.999999Z");
  CHECK(utc_iso(JobClock::Wall::time_point{std::chrono::milliseconds{1795263046007}}, 3) ==
        "2026-11-21T12:10:46.007Z");
  CHECK(utc_iso(JobClock::Wall::time_point{}, 3) == "1970-01-01T00:00:00.000Z");
}

TEST_CASE("the record tells the whole job", "[result_json]") {
  const json record = json::parse(to_json(sample()));
  CHECK(record["format"] == 1);
  CHECK(record["ddprun"] == "0.1.0");
  CHECK(record["run_id"] == "run");
  CHECK(record["program"] == json{"a.py", "--api-key", "***"});
  CHECK(record["exit_code"] == 139);
  CHECK(record["ended_by"] == nullptr);
  CHECK(record["reason"] == "failed");
  CHECK(record["root_cause_rank"] == 1);
  CHECK(record["restarts"] == 1);
  CHECK(record["max_restarts"] == 1);
  CHECK(record["start"] == "2023-11-14T22:13:20.500000Z");
  CHECK(record["end"] == "2023-11-14T22:13:22.000000Z");
  CHECK(record["duration_s"] == 1.5);
  CHECK_FALSE(record.contains("message"));
  REQUIRE(record["attempts"].size() == 2);
  CHECK(record["attempts"][0]["reason"] == "hang");
  CHECK(record["attempts"][0]["root_cause_rank"] == nullptr);
  CHECK(record["attempts"][0]["workers"] == json::array());
  CHECK(record["attempts"][1]["port"] == 2001);
  CHECK(record["attempts"][1]["number"] == 1);
}

TEST_CASE("the record tells each worker's end", "[result_json]") {
  const json workers = json::parse(to_json(sample()))["attempts"][1]["workers"];
  CHECK(workers[0]["status"] == json{{"exit_code", 143}});
  CHECK(workers[0]["asked_to_end"] == true);
  CHECK(workers[0]["end_ns"] == nullptr);
  CHECK_FALSE(workers[0].contains("error"));
  CHECK_FALSE(workers[0].contains("stderr"));
  CHECK(workers[1] == json::parse(R"({"rank": 1, "local_rank": 1, "pid": 77,
      "status": {"signal": 11, "signal_name": "SIGSEGV", "core_dumped": true},
      "start_ns": 5, "end_ns": 10, "asked_to_end": false, "error": "E: \ufffd", "core": "/core",
      "stderr": ["one", "two"], "logs": ["/logs/1/stderr.log"]})"));
}

TEST_CASE("a job that the user ended, or that never began, has its reason", "[result_json]") {
  JobRecord record = sample();
  record.ended_by = SIGTERM;
  record.outcome = SignalReceived{};
  CHECK(json::parse(to_json(record))["ended_by"] == "SIGTERM");
  CHECK(json::parse(to_json(record))["reason"] == "signal");
  record = JobRecord();
  record.outcome = StartFailed{127};
  record.message = "cannot run x";
  CHECK(json::parse(to_json(record))["reason"] == "not-found");
  CHECK(json::parse(to_json(record))["message"] == "cannot run x");
  CHECK(json::parse(to_json(record))["attempts"] == json::array());
  CHECK(reason_of(StartFailed{126}) == "not-executable");
  CHECK(reason_of(StartFailed{125}) == "own-failure");
  CHECK(reason_of(StartFailed{2}) == "usage");
}

TEST_CASE("the record replaces what was there, for the user alone", "[result_json]") {
  const TempDir folder;
  const auto path = folder.path() / "result.json";
  const auto other = folder.path() / "other";
  write_file_atomic(other, "precious");
  fs::create_symlink(other, path);
  write_result_json(path, sample());
  write_result_json(path, sample());
  CHECK(read_file(path) == to_json(sample()));
  CHECK(read_file(other) == "precious");
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
  CHECK_THROWS_AS(write_result_json("/nowhere/result.json", sample()), IoError);
  CHECK_THROWS_AS(write_result_json(folder.path(), sample()), IoError);
}

TEST_CASE("the record can go into a pipe or a device, which stay", "[result_json]") {
  write_result_json("/dev/null", sample());
  CHECK(fs::is_character_file("/dev/null"));
  CHECK_THROWS_AS(write_result_json("/dev/full", sample()), IoError);
  const TempDir folder;
  const auto fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_AS(write_result_json(fifo, sample()), IoError);  // nobody reads
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  write_result_json(fifo, sample());
  std::string text(1 << 16, '\0');
  text.resize(static_cast<std::size_t>(::read(reader.get(), text.data(), text.size())));
  CHECK(text == to_json(sample()));
  const auto open = folder.path() / "open", link = folder.path() / "link";  // as /dev/stdout leads to a file
  const UniqueFd file(::open(open.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::write(file.get(), "hello\n", 6) == 6);
  fs::create_symlink("/proc/self/fd/" + std::to_string(file.get()), link);
  const auto to_link = folder.path() / "to link";
  fs::create_symlink("link", to_link);
  write_result_json(GENERATE(false, true) ? link : to_link, sample());
  CHECK(fs::is_symlink(link));
  CHECK(fs::is_symlink(to_link));
  CHECK(read_file(open) == "hello\n" + to_json(sample()));
}

// -- events --

const JobClock kClock(JobClock::Monotonic::time_point(10s), kDate);

EventRecord event(EventRecord::Kind kind, JobClock::Monotonic::duration after) {
  EventRecord record;
  record.kind = kind;
  record.at = JobClock::Monotonic::time_point(10s + after);
  return record;
}

TEST_CASE("an event is one line with its time in two ways", "[events_json]") {
  EventRecord exited = event(EventRecord::Kind::kExited, 1500ms + 7ns);
  exited.attempt = 2;
  exited.rank = 1;
  exited.local_rank = 0;
  exited.pid = 77;
  exited.status = ExitStatus::killed(SIGKILL);
  CHECK(to_json_line(exited, kClock) ==
        R"({"t_ns":1500000007,"time":"2023-11-14T22:13:22.000000Z","event":"exited","attempt":2,"rank":1,)"
        R"("local_rank":0,"pid":77,"signal":9,"signal_name":"SIGKILL","core_dumped":false})"
        "\n");
}

TEST_CASE("events have the fields that they need and no others", "[events_json]") {
  const auto line = [](const EventRecord& record) {
    json object = json::parse(to_json_line(record, kClock));
    for (const char* key : {"t_ns", "time", "attempt"}) object.erase(key);
    return object;
  };
  EventRecord record = event(EventRecord::Kind::kRestart, 0s);
  record.delay = 1500ms;
  CHECK(line(record) == json{{"event", "restart"}, {"delay_s", 1.5}});
  CHECK(to_json_line(record, kClock).find('\n') == to_json_line(record, kClock).size() - 1);
  record = event(EventRecord::Kind::kSignal, 0s);
  record.signal = SIGUSR1;
  CHECK(line(record) == json{{"event", "signal"}, {"signal", SIGUSR1}, {"signal_name", "SIGUSR1"}});
  record = event(EventRecord::Kind::kFinished, 0s);
  record.exit_code = 3;
  CHECK(line(record) == json{{"event", "finished"}, {"exit_code", 3}});
  record = event(EventRecord::Kind::kExited, 0s);
  record.status = ExitStatus::exited(4);
  CHECK(line(record) == json{{"event", "exited"}, {"exit_code", 4}});
}

TEST_CASE("events are appended and are there at once", "[events_json]") {
  boost::asio::io_context io;
  const TempDir folder;
  const auto path = folder.path() / "events.jsonl";
  const EventRecord started = event(EventRecord::Kind::kStarted, 1s);
  const std::string line = to_json_line(started, kClock);
  {
    EventsJson log(io, path, kClock);
    log.add(started);
    CHECK(test::wait_until([&] { return read_file(path) == line; }));
    log.add(started);
  }
  EventsJson(io, path, kClock).add(started);
  CHECK(read_file(path) == line + line + line);
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("a link is not followed, a missing folder is refused, a full disk ends no job", "[events_json]") {
  boost::asio::io_context io;
  const TempDir folder;
  const auto target = folder.path() / "target";
  const auto link = folder.path() / "link";
  write_file_atomic(target, "");
  fs::create_symlink(target, link);
  for (const fs::path& path : {link, fs::path("/nowhere/events"), folder.path()})
    CHECK_THROWS_AS(EventsJson(io, path, kClock), UsageError);
  EventsJson full(io, "/dev/full", kClock);
  full.add(event(EventRecord::Kind::kStarted, 0s));
  full.add(event(EventRecord::Kind::kFinished, 0s));
  CHECK(read_file(target).empty());
  EventsJson(io, std::nullopt, kClock).add(event(EventRecord::Kind::kStarted, 0s));
}

}  // namespace
}  // namespace ddprun::launcher
