#include <ddprun/flight/watchdog.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::ddp;
using namespace std::chrono_literals;
using ddprun::test::ContainsSubstring;

namespace {

/// The board of a job whose ranks are threads here.
class Table {
 public:
  Board board() {
    return {.set = [this](const std::string& key,
                          const std::string& value) { with([&] { texts_[key] = value; }); },
            .get =
                [this](const std::vector<std::string>& keys) {
                  std::vector<std::optional<std::string>> values;
                  with([&] {
                    for (const auto& key : keys)
                      values.push_back(texts_.count(key) ? std::optional(texts_[key]) : std::nullopt);
                  });
                  return values;
                },
            .add =
                [this](const std::string& key, std::int64_t amount) {
                  std::int64_t sum = 0;
                  with([&] { sum = numbers_[key] += amount, ++looks_[key]; });
                  return sum;
                }};
  }
  int looks_at(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return looks_[key];
  }
  void break_down() {
    const std::scoped_lock lock(mutex_);
    broken_ = true;
  }
  /// From now on every use of the board waits until release().
  void stand_still() {
    const std::scoped_lock lock(mutex_);
    still_ = true;
  }
  void release() {
    const std::scoped_lock lock(mutex_);
    still_ = false;
    released_.notify_all();
  }

 private:
  template <typename Action>
  void with(Action action) {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !still_; });
    if (broken_) throw std::runtime_error("connection lost");
    action();
  }

  std::mutex mutex_;
  std::condition_variable released_;
  bool broken_ = false, still_ = false;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::int64_t> numbers_;
  std::map<std::string, int> looks_;  // calls of add()
};

struct Rank {
  Rank(Table& table, int rank, int size, std::chrono::milliseconds answer_within = 20s)
      : group(recorder.add_group("world")),
        watchdog(std::in_place, recorder, table.board(),
                 Watchdog::Options{.rank = rank,
                                   .world_size = size,
                                   .look_every = 5ms,
                                   .publish_every = 10ms,
                                   .answer_within = answer_within}) {}
  FlightRecorder::Id call(const char* op, std::int64_t elements) {
    return recorder.begin(group, {.op = op, .dtype = "float", .elements = elements, .tensors = 1});
  }
  FlightRecorder recorder;
  FlightRecorder::Group group;
  std::optional<Watchdog> watchdog;
};

}  // namespace

TEST_CASE("the watchdog names the rank that did not arrive, wherever that rank's program is", "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  first.recorder.set_completed(first.call("all_reduce", 7));
  second.recorder.set_completed(second.call("all_reduce", 7));
  const auto id = first.call("all_reduce", 4096);
  const auto text = first.watchdog->explain(id, {0, 1}, "Timed out\nfar away");
  CHECK_THAT(text, ContainsSubstring("all_reduce #2 of 4096 float: rank 1 did not arrive within "));
  CHECK_THAT(text,
             ContainsSubstring(" s: it is at #1 (all_reduce of 7 float, completed) [Timed out?far away]"));
  CHECK(first.watchdog->explain(id, {0, 1}, "again") == text);
  CHECK(first.recorder.records().back().state == CollectiveState::kFailed);
}

TEST_CASE("ranks that fail at the same time answer each other", "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  const auto reduce = first.call("all_reduce", 5), broadcast = second.call("broadcast", 3);
  std::string texts[2];
  std::thread other([&] { texts[1] = second.watchdog->explain(broadcast, {0, 1}, "Timed out"); });
  texts[0] = first.watchdog->explain(reduce, {0, 1}, "Timed out");
  other.join();
  CHECK_THAT(texts[0],
             ContainsSubstring("rank 1 called broadcast of 3 float while this rank made that call"));
  CHECK_THAT(texts[1],
             ContainsSubstring("rank 0 called all_reduce of 5 float while this rank made that call"));
}

TEST_CASE("a rank that has ended does not answer, and what it announced is told", "[flight][clock]") {
  Table table;
  const bool announced = GENERATE(false, true);
  Rank first(table, 0, 2, 300ms);
  Rank second(table, 1, 2, 300ms);
  if (announced) second.watchdog->announce_failure("no\nluck");
  second.watchdog.reset();
  const auto text = first.watchdog->explain(first.call("all_reduce", 5), {0, 1}, "Connection closed");
  CHECK_THAT(text, ContainsSubstring(announced ? "rank 1 has failed: no?luck"
                                               : "rank 1 has ended or does not answer"));
}

TEST_CASE("a board that is gone, or stands still, keeps nobody waiting", "[flight]") {
  Table table;
  Rank first(table, 1, 2, 200ms);
  SECTION("gone") { table.break_down(); }
  SECTION("still") { table.stand_still(); }
  const auto text = first.watchdog->explain(first.call("all_reduce", 5), {0, 1}, "Connection closed");
  CHECK_THAT(text,
             ContainsSubstring(
                 "all_reduce #1 of 5 float: rank 0, which keeps the store, has ended or does not answer"));
  table.release();
  first.watchdog->announce_failure("the end", 20s);  // the thread is back from the board
}

TEST_CASE("rank 0 leaves without the others if it is known that one was lost", "[flight]") {
  Table table;
  std::atomic<int> asked = 0;
  set_failure_is_known([&](std::chrono::milliseconds) { return ++asked > 0; });
  { Rank first(table, 0, 2); }
  set_failure_is_known(nullptr);
  CHECK(asked > 0);
  auto board = table.board();
  CHECK(board.add("left", 0) == 1);
  CHECK(table.looks_at("left") == 2);  // ours, and when it left: it did not look again
}

TEST_CASE("a failure on one rank makes every rank write its ring", "[flight]") {
  const TempDir dir;
  ::setenv("DDPRUN_FLIGHT_DIR", dir.path().c_str(), 1);
  {
    Table table;
    Rank first(table, 0, 2), second(table, 1, 2);
    first.watchdog->explain(first.call("all_reduce", 5), {0, 1}, "Timed out");
    // The others' are there by the time that the failing rank may end.
    const auto theirs = parse_flight_dump(read_file(dir.path() / "flight_1.json"));
    CHECK(theirs.rank == 1);
    CHECK(theirs.reason == "rank 0 asked");
    const auto own = parse_flight_dump(read_file(dir.path() / "flight_0.json"));
    CHECK(own.reason == "all_reduce #1 of 5 float: Timed out");
  }
  ::unsetenv("DDPRUN_FLIGHT_DIR");
}
