#include <ddprun/report/charts.h>

#include <cmath>
#include <limits>

#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

std::vector<std::string> labels(double low, double high, const AxisOptions& options = {}) {
  std::vector<std::string> texts;
  for (const auto& tick : make_axis(low, high, options).ticks) texts.push_back(tick.label);
  return texts;
}
using Texts = std::vector<std::string>;

TEST_CASE("ticks are at 1, 2 or 5 times a power of ten", "[axis]") {
  CHECK(labels(0, 1, {.most_ticks = 5}) == Texts{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"});
  CHECK(labels(-30, 70, {.most_ticks = 6}) == Texts{"-20", "0", "20", "40", "60"});
  CHECK(labels(0, 46900, {.integer = true, .most_ticks = 5}) ==
        Texts{"0", "10000", "20000", "30000", "40000"});
  CHECK(labels(0, 3, {.integer = true}) == Texts{"0", "1", "2", "3"});
  CHECK(labels(1e-30, 4e-30, {.most_ticks = 4}) == Texts{"1e-30", "2e-30", "3e-30", "4e-30"});
  CHECK(labels(1e9, 1e9 + 4, {.most_ticks = 2}) ==
        Texts{"1.000000000e+09", "1.000000002e+09", "1.000000004e+09"});
}

TEST_CASE("a range of one value is widened, and the value lies in it", "[axis]") {
  for (const double value : {0.0, 0.5, -3.0, 1e-30, 1e30, 1e308, -1e308, 5e-324, 1e16}) {
    for (const bool integer : {false, true}) {
      INFO(value);
      const auto axis = make_axis(value, value, {.integer = integer});
      CHECK(axis.low < axis.high);
      CHECK(axis.place(value) > 0);
      CHECK(axis.place(value) < 1);
      CHECK(axis.ticks.size() >= 1);
      CHECK(axis.ticks.size() <= 9);
    }
  }
}

TEST_CASE("the widest range there is has finite ticks", "[axis]") {
  const double most = std::numeric_limits<double>::max();
  const auto axis = make_axis(-most, most, {.margin = 0.05});
  REQUIRE(axis.ticks.size() >= 2);
  for (const auto& tick : axis.ticks) CHECK((tick.place >= 0 && tick.place <= 1));
  CHECK(axis.place(most) <= 1);
}

TEST_CASE("a logarithmic axis has its ticks at powers of ten, and between them where there is room",
          "[axis]") {
  CHECK(labels(0.001, 1000, {.logarithmic = true, .most_ticks = 8}) ==
        Texts{"0.001", "0.01", "0.1", "1", "10", "100", "1000"});
  CHECK(labels(1, 10, {.logarithmic = true}) == Texts{"1", "2", "5", "10"});
  CHECK(labels(1e-300, 1e300, {.logarithmic = true, .most_ticks = 4}).size() <= 5);
  CHECK(labels(1e-8, 1e-6, {.logarithmic = true}) ==
        Texts{"1e-8", "2e-8", "5e-8", "1e-7", "2e-7", "5e-7", "1e-6"});
  CHECK(make_axis(3, 3, {.logarithmic = true}).ticks.size() >= 1);
}

TEST_CASE("what has no place on an axis is nowhere", "[axis]") {
  const auto linear = make_axis(0, 4, {});
  CHECK(linear.place(1) == 0.25);
  CHECK(std::isnan(linear.place(std::numeric_limits<double>::quiet_NaN())));
  CHECK(std::isnan(linear.place(std::numeric_limits<double>::infinity())));
  const auto logarithmic = make_axis(1, 100, {.logarithmic = true});
  CHECK(logarithmic.place(10) == 0.5);
  CHECK(std::isnan(logarithmic.place(0)));
  CHECK(std::isnan(logarithmic.place(-1)));
}

TEST_CASE("a curve has gaps where a point has no place", "[curve]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto axis = make_axis(0, 10, {});
  const auto strokes =
      strokes_of({0, 1, 2, 3, 4, 5}, {1, 2, nan, nan, 5, nan}, axis, axis, {100, 200}, 1000, 100);
  REQUIRE(strokes.size() == 2);
  REQUIRE(strokes[0].size() == 2);
  CHECK(strokes[0][1].x == 200);
  CHECK(strokes[0][1].y == 180);
  CHECK(strokes[1].size() == 1);
  CHECK(strokes_of({}, {}, axis, axis, {}, 10, 10).empty());
}

TEST_CASE("of many points in a pixel column those are kept that make its outline", "[curve]") {
  std::vector<double> x, y;
  for (int i = 0; i < 100000; ++i) {
    x.push_back(i);
    y.push_back(i == 54321 ? 10 : std::sin(i));
  }
  const auto strokes = strokes_of(x, y, make_axis(0, 100000, {}), make_axis(-10, 10, {}), {0, 100}, 500, 100);
  REQUIRE(strokes.size() == 1);
  CHECK(strokes[0].size() <= 4 * 501);
  double highest = 100;
  for (const auto& point : strokes[0]) highest = std::min(highest, point.y);
  CHECK(highest == 0);  // the one that stands out
}

}  // namespace
}  // namespace ddprun::report
