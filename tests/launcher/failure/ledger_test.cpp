#include "launcher/failure/ledger.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::Approx;

TEST_CASE("a job whose workers say nothing has no ledger", "[ledger]") {
  CHECK(to_ledger(10, {}).is_null());
  CHECK(to_ledger(10, {{.begin = 0, .end = 9}}).is_null());
}

TEST_CASE("a job's time sums up, with what restarts cost", "[ledger]") {
  AttemptTimes first{.begin = 0.5, .end = 20};
  first.spent.data = 1;
  first.spent.compute = 10;
  first.spent.communication = 2;
  first.spent.evaluation = 3;
  first.spent.checkpoint = 0.5;
  first.spent.start = 2;
  first.first_step = 0;
  first.last_step = 100;
  AttemptTimes second{.begin = 22, .end = 40};
  second.spent.data = 0.5;
  second.spent.compute = 8;
  second.spent.communication = 1;
  second.spent.start = 3;
  second.first_step = 75;
  second.last_step = 175;
  const auto ledger = to_ledger(41, {first, second});
  CHECK(ledger["wall"] == 41.0);
  CHECK(ledger["start"] == Approx(2.5));
  CHECK(ledger["restarts"] == Approx(2 + 3));
  CHECK(ledger["repeated"] == Approx(2));  // 25 of 100 steps
  CHECK(ledger["compute"] == Approx(10 + 6));
  CHECK(ledger["data"] == Approx(1.5));
  double sum = 0;
  for (const auto& [name, seconds] : ledger.items())
    if (name != "wall") sum += seconds.get<double>();
  CHECK(sum == Approx(41));
}

TEST_CASE("steps that were never lost are not repeated", "[ledger]") {
  AttemptTimes first{.begin = 0, .end = 5}, second{.begin = 5, .end = 9};
  first.spent.compute = second.spent.compute = 3;
  first.first_step = 0;
  first.last_step = second.first_step = 10;
  second.last_step = 20;
  CHECK(to_ledger(9, {first, second})["repeated"] == 0.0);
}

}  // namespace
}  // namespace ddprun::launcher
