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
                                   .on_waiting_in_vain = [this] { ++told_in_vain; },
                                   .look_every = 5ms,
                                   .publish_every = 10ms,
                                   .answer_within = answer_within,
                                   .stuck_after = 30ms}) {
    watchdog->add_group(group, "world");
  }
  FlightRecorder::Id call(const char* op, std::int64_t elements) {
    return recorder.begin(group, {.op = op, .dtype = "float", .elements = elements, .tensors = 1});
  }
  FlightRecorder recorder;
  FlightRecorder::Group group;
  std::atomic<int> told_in_vain = 0;
  std::optional<Watchdog> watchdog;
};

/// Until two ranks have compared their calls several times.
void let_compare(Table& table) {
  std::this_thread::sleep_for(100ms);  // longer than stuck_after
  for (const auto until = table.looks_at("questions") + 100; table.looks_at("questions") < until;)
    std::this_thread::sleep_for(1ms);
}

bool soon_waits_in_vain(const Rank& rank) {
  for (int i = 0; i < 2000 && !rank.watchdog->waits_in_vain(); ++i) std::this_thread::sleep_for(10ms);
  return rank.watchdog->waits_in_vain();
}

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

TEST_CASE("a rank that waits for one that has finished learns it, and says so", "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  first.recorder.set_completed(first.call("all_reduce", 7));
  second.recorder.set_completed(second.call("all_reduce", 7));
  second.recorder.begin(second.group, {.op = kCloseOp});
  const auto waiting = first.call("all_reduce", 7);
  REQUIRE(soon_waits_in_vain(first));
  CHECK_THAT(first.watchdog->explain(waiting, {0, 1}, "aborted"),
             ContainsSubstring("all_reduce #2 of 7 float: rank 1 has finished and makes no more calls"));
  CHECK(first.told_in_vain == 1);
  CHECK_FALSE(second.watchdog->waits_in_vain());
}

TEST_CASE("a rank that waits in a subgroup for one that has finished learns it", "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  std::vector<FlightRecorder::Group> pairs;
  for (Rank* rank : {&first, &second}) {
    pairs.push_back(rank->recorder.add_group("world.1", {0, 1}));
    rank->watchdog->add_group(pairs.back(), "world.1");
    rank->recorder.set_completed(rank->recorder.begin(pairs.back(), {.op = "barrier"}));
  }
  second.recorder.begin(second.group, {.op = kCloseOp});
  const auto waiting = first.recorder.begin(pairs[0], {.op = "barrier"});
  REQUIRE(soon_waits_in_vain(first));
  CHECK_THAT(first.watchdog->explain(waiting, {0, 1}, "aborted"),
             ContainsSubstring("barrier #2: rank 1 has finished and makes no more calls"));
}

TEST_CASE("ranks that wait in different calls learn it, also where one of them has gone on", "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  const auto root = second.call("broadcast", 3);
  const bool goes_on = GENERATE(false, true);
  if (goes_on) second.recorder.set_completed(root), second.call("all_reduce", 5);
  first.call("all_reduce", 5);
  CHECK((soon_waits_in_vain(first) || soon_waits_in_vain(second)));
}

TEST_CASE("ranks that come late, have finished first, or only seem to wait are not taken for lost",
          "[flight]") {
  Table table;
  Rank first(table, 0, 2), second(table, 1, 2);
  SECTION("late") {
    const auto early = first.call("all_reduce", 7);
    let_compare(table);
    const auto late = second.call("all_reduce", 7);
    let_compare(table);
    first.recorder.set_completed(early), second.recorder.set_completed(late);
    second.call("broadcast", 3);
  }
  SECTION("finished first") {
    second.recorder.begin(second.group, {.op = kCloseOp});
    let_compare(table);
    first.recorder.begin(first.group, {.op = kCloseOp});
  }
  SECTION("has started but does not wait") {
    first.recorder.begin(first.group, {.op = "all_gather", .told_by_wait = true});
    second.recorder.begin(second.group, {.op = "reduce_scatter", .told_by_wait = true});
  }
  SECTION("a group of another job") {
    first.recorder.begin(first.recorder.add_group("world"), {.op = "barrier"});
    second.recorder.begin(second.recorder.add_group("world"), {.op = kCloseOp});
  }
  let_compare(table);
  CHECK_FALSE(first.watchdog->waits_in_vain());
  CHECK_FALSE(second.watchdog->waits_in_vain());
}
