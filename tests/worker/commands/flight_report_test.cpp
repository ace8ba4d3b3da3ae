#include "worker/commands/flight_report.h"

#include <fstream>
#include <iostream>
#include <sstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddp::CollectiveState;
using ddprun::test::ContainsSubstring;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kStart = 1'700'000'000 * kSecond;

/// Each step is one all_reduce of 8 float, one second apart. The last one may not have completed.
ddp::FlightDump dump_of(int rank, int size, int steps, CollectiveState last = CollectiveState::kCompleted,
                        std::int64_t written_after_s = 60) {
  ddp::FlightDump dump{rank, size, "test", kStart + written_after_s * kSecond, {}, {}};
  for (int i = 0; i < size; ++i) dump.groups["world"].push_back(i);
  for (int step = 1; step <= steps; ++step) {
    ddp::CollectiveRecord call;
    call.sequence = static_cast<std::uint64_t>(step);
    call.group = "world";
    call.op = "all_reduce";
    call.dtype = "float";
    call.elements = 8;
    call.tensors = 1;
    call.shape = {8};
    call.created_ns = kStart + step * kSecond;
    call.state = step == steps ? last : CollectiveState::kCompleted;
    if (!call.pending())
      call.ended_ns = call.created_ns + (call.state == CollectiveState::kFailed ? 30 * kSecond : 1);
    dump.collectives.push_back(call);
  }
  return dump;
}

std::string text_of(const FlightReport& report) {
  std::string text;
  for (const auto& line : report.lines) text += line + "\n";
  return text;
}

struct Run {
  int code;
  std::string out;
};

Run run(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  std::ostringstream out;
  auto* before = std::cout.rdbuf(out.rdbuf());
  int code = 0;
  try {
    code = run_flight_report(static_cast<int>(argv.size()), argv.data());
  } catch (const UsageError& error) {
    code = 2;
    out << error.what();
  } catch (const IoError& error) {
    code = 1;
    out << error.what();
  }
  std::cout.rdbuf(before);
  return {code, out.str()};
}

}  // namespace

TEST_CASE("a report of ranks that agree names no culprit", "[flight]") {
  const auto report = make_flight_report({dump_of(0, 2, 3), dump_of(1, 2, 3)});
  CHECK_FALSE(report.culprit);
  CHECK(text_of(report) ==
        "rank 0 at #3 (all_reduce of 8 float, completed), written because: test\n"
        "rank 1 at #3 (all_reduce of 8 float, completed), written because: test\n"
        "group world: all ranks agree\n");
}

TEST_CASE("a report names the rank that did not arrive and how long the others waited", "[flight]") {
  const auto report = make_flight_report({dump_of(1, 3, 2), dump_of(0, 3, 3, CollectiveState::kFailed),
                                          dump_of(2, 3, 3, CollectiveState::kStarted)});
  CHECK(report.culprit);
  CHECK_THAT(text_of(report),
             ContainsSubstring("group world: all_reduce #3 of 8 float: rank 1 did not arrive: it is at #2 "
                               "(all_reduce of 8 float, completed)\n"
                               "group world: ranks 0 and 2 waited there, up to 57.0 s\n"));
}

TEST_CASE("a report names a rank whose call differs", "[flight]") {
  auto other = dump_of(1, 2, 3, CollectiveState::kStarted);
  other.collectives.back().op = "broadcast";
  const auto report = make_flight_report({dump_of(0, 2, 3, CollectiveState::kStarted), other});
  CHECK(report.culprit);
  CHECK_THAT(text_of(report),
             ContainsSubstring("all_reduce #3 of 8 float: rank 1 called broadcast of 8 float instead\n"));
}

TEST_CASE("a report names ranks without a record, and older records", "[flight]") {
  const auto report =
      make_flight_report({dump_of(0, 3, 3, CollectiveState::kStarted),
                          dump_of(1, 3, 2, CollectiveState::kCompleted, 50), dump_of(1, 3, 1)});
  CHECK(report.culprit);
  CHECK_THAT(text_of(report), ContainsSubstring("rank 2: no record\n"));
  CHECK_THAT(text_of(report), ContainsSubstring("rank 2 has ended or does not answer"));
  CHECK_THAT(text_of(report), ContainsSubstring("rank 1 at #1 "));  // of two, the newer
  const auto old = make_flight_report({dump_of(0, 2, 3), dump_of(1, 2, 3, CollectiveState::kCompleted, 50)});
  CHECK_THAT(
      text_of(old),
      ContainsSubstring("rank 1 at #3 (all_reduce of 8 float, completed), written 10.0 s before the last"));
}

TEST_CASE("a rank that is a moment behind in records written on request is not blamed", "[flight]") {
  auto waiting = dump_of(0, 2, 3, CollectiveState::kStarted, 3);
  waiting.time_ns += kSecond / 2;
  const auto report = make_flight_report({waiting, dump_of(1, 2, 2, CollectiveState::kCompleted, 3)});
  CHECK_FALSE(report.culprit);
  CHECK_THAT(text_of(report), ContainsSubstring("rank 1 had not arrived yet: it is at #2"));
  CHECK_THAT(text_of(report), ContainsSubstring("rank 0 waited there, up to 0.5 s"));
}

TEST_CASE("records of another job are left out by name", "[flight]") {
  const auto report =
      make_flight_report({dump_of(0, 2, 3), dump_of(1, 2, 3), dump_of(2, 4, 1, CollectiveState::kFailed, 1)});
  CHECK_FALSE(report.culprit);
  CHECK_THAT(
      text_of(report),
      ContainsSubstring("rank 2: its record is from a job of 4 ranks, but the newest is from a job of 2"));
}

TEST_CASE("ranks outside of a subgroup are not missed in it", "[flight]") {
  auto first = dump_of(0, 2, 2), second = dump_of(1, 2, 2);
  auto call = first.collectives.back();
  call.group = "half";
  call.sequence = 1;
  call.state = CollectiveState::kStarted;
  first.collectives.push_back(call);
  first.groups["half"] = {0};
  CHECK_FALSE(make_flight_report({first, second}).culprit);
}

TEST_CASE("worker flight reads nested folders and names what it cannot read", "[flight]") {
  const TempDir dir;
  CHECK(run({"flight"}).code == 2);
  CHECK(run({"flight", "a", "b"}).code == 2);
  CHECK(run({"flight", "--help"}).code == 0);
  CHECK_THAT(run({"flight", (dir.path() / "none").string()}).out,
             ContainsSubstring("expected a folder, got"));
  const auto nothing = run({"flight", dir.path().string()});
  CHECK(nothing.code == 1);
  CHECK(nothing.out == dir.path().string() + ": found no readable flight_RANK.json");

  for (int rank = 0; rank < 2; ++rank) {
    const auto folder = dir.path() / "attempt_0" / std::to_string(rank);
    std::filesystem::create_directories(folder);
    write_file_atomic(folder / ("flight_" + std::to_string(rank) + ".json"),
                      to_json(dump_of(rank, 2, 3 - rank,
                                      rank == 0 ? CollectiveState::kFailed : CollectiveState::kCompleted)));
  }
  std::ofstream(dir.path() / "flight_7.json") << "{\"version\": 1, ";
  std::ofstream(dir.path() / "other.json") << "{";
  const auto found = run({"flight", dir.path().string()});
  CHECK(found.code == 1);
  CHECK_THAT(found.out, ContainsSubstring("flight_7.json: not a flight record: "));
  CHECK_THAT(found.out, ContainsSubstring("rank 1 did not arrive"));
  CHECK_THAT(found.out, !ContainsSubstring("other.json"));
}
