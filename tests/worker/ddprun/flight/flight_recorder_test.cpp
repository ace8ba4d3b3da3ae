#include <ddprun/flight/flight_recorder.h>

#include <cstdlib>
#include <set>
#include <thread>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::ddp;

namespace {

CollectiveRecord all_reduce(std::int64_t elements) {
  return {.op = "all_reduce",
          .dtype = "float",
          .elements = elements,
          .tensors = 1,
          .shape = {elements},
          .bytes = 4 * elements};
}

}  // namespace

TEST_CASE("the recorder numbers the collectives of each group and notes their states", "[flight]") {
  FlightRecorder recorder;
  const auto world = recorder.add_group("world"), half = recorder.add_group("half");
  const auto first = recorder.begin(world, all_reduce(5));
  recorder.begin(half, {.op = "barrier"});
  const auto second = recorder.begin(world, all_reduce(6));
  recorder.set_started(first);
  recorder.set_completed(first);
  recorder.set_failed(second);
  recorder.set_completed(second);  // has ended already

  const auto records = recorder.records();
  REQUIRE(records.size() == 3);
  CHECK(describe(records[0]) == "all_reduce of 5 float");
  CHECK(describe(records[1]) == "barrier");
  CHECK(records[0].sequence == 1);
  CHECK(records[1].sequence == 1);
  CHECK(records[1].group == "half");
  CHECK(records[2].sequence == 2);
  CHECK(records[0].state == CollectiveState::kCompleted);
  CHECK(records[1].state == CollectiveState::kScheduled);
  CHECK(records[2].state == CollectiveState::kFailed);
  CHECK(records[0].ended_ns >= records[0].created_ns);
  CHECK(records[1].ended_ns == 0);
}

TEST_CASE("send and recv have no place in the group's order", "[flight]") {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world");
  recorder.begin(
      group,
      {.op = "send", .dtype = "float", .elements = 3, .tensors = 1, .peer = 1, .point_to_point = true});
  recorder.begin(group, all_reduce(5));
  CHECK(recorder.records()[0].sequence == 0);
  CHECK(describe(recorder.records()[0]) == "send of 3 float to rank 1");
  CHECK(recorder.records()[1].sequence == 1);
}

TEST_CASE("the ring keeps the newest, and forgets what it has no room for", "[flight]") {
  FlightRecorder recorder(3);
  const auto group = recorder.add_group("world");
  const auto oldest = recorder.begin(group, all_reduce(1));
  for (int i = 2; i <= 5; ++i) recorder.begin(group, all_reduce(i));
  recorder.set_failed(oldest);  // its place is another's now
  const auto records = recorder.records();
  REQUIRE(records.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(records[i].sequence == i + 3);
    CHECK(records[i].pending());
  }
  CHECK(recorder.records(1).at(0).sequence == 5);
  CHECK_FALSE(recorder.first_pending(oldest));
}

TEST_CASE("a failure begins at the first pending collective of its group", "[flight]") {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world"), other = recorder.add_group("other");
  recorder.begin(other, all_reduce(1));
  recorder.set_completed(recorder.begin(group, all_reduce(2)));
  const auto second = recorder.begin(group, all_reduce(3));
  const auto third = recorder.begin(group, all_reduce(4));
  CHECK(recorder.first_pending(third)->sequence == 2);
  recorder.set_failed(second);
  CHECK(recorder.first_pending(third)->sequence == 3);
}

TEST_CASE("a failure does not begin at a collective of which nobody knows whether it has ended", "[flight]") {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world");
  CollectiveRecord exchange = all_reduce(1);
  exchange.told_by_wait = true;
  const auto first = recorder.begin(group, exchange);
  CHECK(recorder.first_pending(recorder.begin(group, exchange))->sequence == 2);
  CHECK(recorder.first_pending(first)->sequence == 1);
}

TEST_CASE("all-reduces of the expected sizes are buckets, in order", "[flight]") {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world");
  const auto bucket_of_next = [&](const CollectiveRecord& call) {
    recorder.begin(group, call);
    return recorder.records(1)[0].bucket;
  };
  CHECK(bucket_of_next(all_reduce(10)) == -1);
  recorder.expect_buckets(group, {40, 20});
  CHECK(bucket_of_next(all_reduce(3)) == -1);  // something else
  CHECK(bucket_of_next(all_reduce(10)) == 0);
  CollectiveRecord half = all_reduce(5);  // compressed to two bytes an element
  half.bytes = 10;
  CHECK(bucket_of_next(half) == 1);
  CHECK(bucket_of_next(all_reduce(10)) == -1);  // they are all there
  recorder.expect_buckets(group, {40, 20});
  CHECK(bucket_of_next(all_reduce(10)) == 0);
}

TEST_CASE("a group's name that is taken gets a number", "[flight]") {
  FlightRecorder recorder;
  for (int i = 0; i < 3; ++i) recorder.begin(recorder.add_group("world"), {.op = "barrier"});
  CHECK(recorder.records()[0].group == "world");
  CHECK(recorder.records()[1].group == "world#2");
  CHECK(recorder.records()[2].group == "world#3");
}

TEST_CASE("several threads may record and read at once", "[flight]") {
  FlightRecorder recorder(64);
  const auto group = recorder.add_group("world");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int call = 0; call < 500; ++call) {
        const auto id = recorder.begin(group, all_reduce(call));
        recorder.set_started(id);
        recorder.set_completed(id);
      }
    });
  for (int i = 0; i < 50; ++i) recorder.records();
  for (auto& thread : threads) thread.join();
  const auto records = recorder.records();
  REQUIRE(records.size() == 64);
  CHECK(records.front().sequence == 2000 - 63);
  CHECK(records.back().sequence == 2000);
}

TEST_CASE("a dump is read back as it was written", "[flight]") {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world", {0, 1, 2});
  recorder.expect_buckets(group, {20});
  recorder.set_completed(recorder.begin(group, all_reduce(5)));
  recorder.begin(
      group, {.op = "broadcast", .dtype = "long", .elements = 6, .tensors = 2, .shape = {2, 3}, .peer = 1});
  const FlightDump dump{1, 3, "a reason", epoch_now_ns(), recorder.records(), recorder.groups()};
  const auto read = parse_flight_dump(to_json(dump));
  CHECK(read.rank == 1);
  CHECK(read.world_size == 3);
  CHECK(read.reason == "a reason");
  CHECK(read.groups == std::map<std::string, std::vector<int>>{{"world", {0, 1, 2}}});
  CHECK(std::abs(read.time_ns - dump.time_ns) < 1000);
  REQUIRE(read.collectives.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto &got = read.collectives[i], &wanted = dump.collectives[i];
    CHECK(describe(got) == describe(wanted));
    CHECK(got.sequence == wanted.sequence);
    CHECK(got.group == wanted.group);
    CHECK(got.shape == wanted.shape);
    CHECK(got.state == wanted.state);
    CHECK(std::abs(got.created_ns - wanted.created_ns) < 1000);
    CHECK((got.ended_ns == 0) == (wanted.ended_ns == 0));
  }
}

TEST_CASE("a text that is not a flight record is refused in one line", "[flight]") {
  const auto text =
      GENERATE(as<std::string>{}, "", "{", "[]", "{\"version\": 2}", "{\"version\": 1, \"rank\": 1}",
               "{\"version\": 1, \"rank\": 3, \"world_size\": 2, \"reason\": \"\", \"time\": 1, "
               "\"collectives\": []}",
               "{\"version\": 1, \"rank\": 0, \"world_size\": 2, \"reason\": \"\", \"time\": 1e300, "
               "\"collectives\": []}");
  CAPTURE(text);
  try {
    parse_flight_dump(text);
    FAIL("it was read");
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    CHECK(message.rfind("not a flight record: ", 0) == 0);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("dumps go where the user says, or to the launcher's log files, or to the program's folder",
          "[flight]") {
  const TempDir dir;
  const auto with = [](const char* wish, const std::string& error_file) {
    ::setenv("DDPRUN_FLIGHT_DIR", wish, 1);
    ::setenv("TORCHELASTIC_ERROR_FILE", error_file.c_str(), 1);
    const auto folder = flight_folder();
    ::unsetenv("DDPRUN_FLIGHT_DIR");
    ::unsetenv("TORCHELASTIC_ERROR_FILE");
    return folder ? folder->string() : "nowhere";
  };
  const std::string kept_by_nobody =
      temp_folder() / "ddprun-5025abb0-669e-4de9-9132-c5451e74ff48" / "attempt_0" / "1" / "error.json";
  CHECK(with("", "") == "nowhere");
  CHECK(with("", kept_by_nobody) == "nowhere");
  set_flight_folder(dir.path() / "flight");
  CHECK(with("", kept_by_nobody) == dir.path() / "flight");
  CHECK(with("", "/logs/attempt_0/1/error.json") == "/logs/attempt_0/1");
  CHECK(with("/wish", "/logs/attempt_0/1/error.json") == "/wish");

  FlightRecorder recorder;
  std::filesystem::path extra;
  set_extra_flight_dump([&](const std::filesystem::path& folder) { extra = folder; });
  const auto path = write_flight_dump(recorder, 1, 2, "test");
  set_extra_flight_dump({});
  REQUIRE(path == dir.path() / "flight" / "flight_1.json");
  CHECK(extra == dir.path() / "flight");
  CHECK(parse_flight_dump(read_file(*path)).reason == "test");
  set_flight_folder("/dev/null/cannot");
  CHECK_FALSE(write_flight_dump(recorder, 1, 2, "test"));
}
