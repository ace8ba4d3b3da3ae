#include <nlohmann/json.hpp>

#include "launcher/outcome/result_json.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::Approx;

AttemptRecord attempt_between(double begin, double end) {
  AttemptRecord record;
  record.start_ns = static_cast<std::int64_t>(begin * 1e9);
  record.end_ns = static_cast<std::int64_t>(end * 1e9);
  return record;
}

TEST_CASE("a job whose workers say nothing has no ledger", "[ledger]") {
  CHECK(to_ledger(10, {}).is_null());
  CHECK(to_ledger(10, {attempt_between(0, 9)}).is_null());
}

TEST_CASE("a job's time sums up, with what restarts cost", "[ledger]") {
  AttemptRecord first = attempt_between(0.5, 20);
  first.said.seconds.data = 1;
  first.said.seconds.compute = 10;
  first.said.seconds.communication = 2;
  first.said.seconds.evaluation = 3;
  first.said.seconds.checkpoint = 0.5;
  first.said.seconds.start = 2;
  first.first_step = 0;
  first.said.step = 100;
  AttemptRecord second = attempt_between(22, 40);
  second.said.seconds.data = 0.5;
  second.said.seconds.compute = 8;
  second.said.seconds.communication = 1;
  second.said.seconds.start = 3;
  second.first_step = 75;
  second.said.step = 175;
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
  AttemptRecord first = attempt_between(0, 5), second = attempt_between(5, 9);
  first.said.seconds.compute = second.said.seconds.compute = 3;
  first.first_step = 0;
  first.said.step = second.first_step = 10;
  second.said.step = 20;
  CHECK(to_ledger(9, {first, second})["repeated"] == 0.0);
}

}  // namespace
}  // namespace ddprun::launcher
