#include "launcher/status/progress.h"

#include <string>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Clock = Progress::Clock;

Clock::time_point at(double seconds) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + seconds)));
}

std::string line(int step, double compute, double data) {
  WorkerStatus status;
  status.step = step;
  status.samples = 32 * step;
  status.seconds.compute = compute;
  status.seconds.data = data;
  return to_json_line(status);
}

TEST_CASE("what is said last counts, in whatever pieces it comes", "[progress]") {
  Progress progress;
  CHECK_FALSE(progress.said_at());
  for (const char c : line(1, 0, 0) + R"({"loss":0.5})"
                                      "\n")
    progress.add({&c, 1}, at(1));
  progress.add(line(2, 0, 0) + line(3, 0, 0) + line(4, 0, 0).substr(0, 5), at(2));
  CHECK(progress.latest().step == 3);
  CHECK(progress.latest().loss == 0.5);
  CHECK(progress.said_at() == at(2));
  CHECK(progress.garbage_lines() == 0);
}

TEST_CASE("garbage is counted, and what follows it is read", "[progress]") {
  Progress progress;
  progress.add("garbage\n\n" + line(1, 0, 0) + "{\"step\":-1}\n", at(0));
  CHECK(progress.garbage_lines() == 3);
  CHECK(progress.latest().step == 1);
}

TEST_CASE("a line without an end is one line of garbage", "[progress]") {
  Progress progress;
  for (int i = 0; i < 1000; ++i) progress.add(std::string(10'000, 'x'), at(0));
  CHECK(progress.garbage_lines() == 1);
  progress.add("x\n" + line(7, 0, 0), at(0));
  CHECK(progress.garbage_lines() == 1);
  CHECK(progress.latest().step == 7);
}

TEST_CASE("the pace is that of the last ten seconds", "[progress]") {
  Progress progress;
  CHECK_FALSE(progress.pace());
  for (int i = 0; i <= 200; ++i)  // a step takes 0.1 s at first, then 0.2 s
    progress.add(line(i, 0.05 * i, i <= 100 ? 0 : 0.1 * (i - 100)),
                 at(i <= 100 ? 0.1 * i : 10 + 0.2 * (i - 100)));
  const auto pace = progress.pace();
  REQUIRE(pace);
  CHECK(pace->step_seconds == Approx(0.2));
  CHECK(pace->compute == Approx(0.05));
  CHECK(pace->data == Approx(0.1));
  CHECK_FALSE(pace->communication);
  CHECK(pace->samples_per_second == Approx(160));
  CHECK(pace->steps >= 45);
  CHECK(pace->steps <= 55);
}

TEST_CASE("an evaluation does not make the steps before and after it longer", "[progress]") {
  Progress progress;
  for (int i = 0; i <= 40; ++i) {  // a step takes 0.1 s, and 20 steps are followed by 3 s of evaluation
    const double evaluation = i > 20 ? 3 : 0;
    progress.add(R"({"step":)" + std::to_string(i) + R"(,"seconds":{"evaluation":)" +
                     std::to_string(evaluation) + "}}\n",
                 at(0.1 * i + evaluation));
  }
  REQUIRE(progress.pace());
  CHECK(progress.pace()->step_seconds == Approx(0.1));
}

TEST_CASE("a worker that begins anew has no pace yet", "[progress]") {
  Progress progress;
  progress.add(line(10, 1, 0), at(0));
  progress.add(line(20, 2, 0), at(1));
  CHECK(progress.pace());
  progress.add(line(5, 0.1, 0), at(2));
  CHECK_FALSE(progress.pace());
  progress.add(line(5, 0.1, 0), at(3));
  CHECK_FALSE(progress.pace());
}

}  // namespace
}  // namespace ddprun::launcher
