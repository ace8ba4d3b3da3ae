#include <ddprun/report/charts.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

namespace ddprun::report {
namespace {

using test::ContainsSubstring;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Point {
  double x = 0, y = 0;
};

/// The lines with this class, without the sample in the legend.
std::vector<std::vector<Point>> curves_of(const std::string& svg, const std::string& name = "c0") {
  std::vector<std::vector<Point>> curves;
  const std::string begin = "<polyline fill=\"none\" class=\"" + name + "\"";
  for (auto at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1)) {
    const auto* text = svg.c_str() + svg.find("points=\"", at) + 8;
    auto& curve = curves.emplace_back();
    Point point;
    for (int length = 0; std::sscanf(text, "%lf,%lf %n", &point.x, &point.y, &length) == 2; text += length)
      curve.push_back(point);
  }
  if (!curves.empty()) curves.erase(curves.begin());
  return curves;
}

int count_in(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

LineChart chart_with(std::vector<double> x, std::vector<double> y, bool log_y = false) {
  return {
      .title = "loss", .x_label = "step", .y_label = "", .series = {{"train_loss", x, y}}, .log_y = log_y};
}

TEST_CASE("a curve goes from one side of the chart to the other", "[line_chart]") {
  const auto curves = curves_of(line_chart_svg(chart_with({0, 1, 2, 3}, {4, 3, 2, 1})));
  REQUIRE(curves.size() == 1);
  REQUIRE(curves[0].size() == 4);
  CHECK(curves[0].front().x < 80);
  CHECK(curves[0].back().x > 740);
  CHECK(curves[0].front().y < 120);
  CHECK(curves[0].back().y > 380);  // downwards
}

TEST_CASE("each curve has its colour, and is dashed once the colours repeat", "[line_chart]") {
  LineChart chart;
  for (int i = 0; i < 9; ++i)
    chart.series.push_back({"curve " + std::to_string(i), {0, 1}, {0.0 + i, 1.0 + i}});
  const auto svg = line_chart_svg(chart);
  CHECK(curves_of(svg, "c0").size() == 3);  // and the ninth, with its sample
  for (int i = 1; i < 8; ++i) CHECK(curves_of(svg, "c" + std::to_string(i)).size() == 1);
  CHECK(count_in(svg, "stroke-dasharray") == 2);
}

TEST_CASE("points that are absent leave a gap in the curve", "[line_chart]") {
  std::vector<double> x, y;
  for (int i = 0; i <= 1000; ++i) {
    x.push_back(i);
    y.push_back(i > 400 && i < 600 ? kNaN : 1 + i % 7);
  }
  const auto curves = curves_of(line_chart_svg(chart_with(x, y)));
  REQUIRE(curves.size() == 2);
  CHECK(curves[1].front().x - curves[0].back().x > 120);
  CHECK(curves[1].front().x - curves[0].back().x < 180);
}

TEST_CASE("a point alone is a dot", "[line_chart]") {
  CHECK(count_in(line_chart_svg(chart_with({5}, {0.25})), "<circle") == 1);
  std::vector<double> x, y;
  for (int i = 0; i < 200; ++i) {
    x.push_back(i);
    y.push_back(i % 2 == 0 ? 1 : kNaN);
  }
  CHECK(count_in(line_chart_svg(chart_with(x, y)), "<circle") == 100);
}

TEST_CASE("a chart without a point says so", "[line_chart]") {
  for (const auto& chart : {chart_with({}, {}), chart_with({1, 2}, {kNaN, kInf}),
                            chart_with({1, 2}, {0, -1}, true), LineChart()}) {
    const auto svg = line_chart_svg(chart);
    CHECK(curves_of(svg).empty());
    CHECK_THAT(svg, ContainsSubstring(">no data</text>"));
  }
}

TEST_CASE("values of any size are drawn", "[line_chart]") {
  const auto is_inside = [](const std::string& svg) {
    std::size_t points = 0;
    for (const auto& curve : curves_of(svg))
      for (const auto& [x, y] : curve) points += x > 0 && x < 800 && y > 0 && y < 500 ? 1 : 0;
    return points;
  };
  for (const bool log_y : {false, true}) {
    for (const auto& y : std::vector<std::vector<double>>{{7, 7, 7},
                                                          {1e-30, 1e-30, 1e-30},
                                                          {1e300, 1e-300, 1e308},
                                                          {5e-324, 1e-320, 1e-310},
                                                          {1e15, 1e15 + 1, 1e15 + 2}}) {
      INFO(y[0] << ' ' << log_y);
      CHECK(is_inside(line_chart_svg(chart_with({0, 1, 2}, y, log_y))) == 3);
    }
  }
  CHECK(is_inside(line_chart_svg(chart_with({0, 1}, {-1e308, 1e308}))) == 2);
}

TEST_CASE("a hundred thousand points make a chart of the usual size", "[line_chart]") {
  std::vector<double> x, y;
  for (int i = 0; i < 100000; ++i) {
    x.push_back(i);
    y.push_back(std::exp(-i / 3e4) + 0.1 * std::sin(i * 0.7));
  }
  CHECK(line_chart_svg(chart_with(x, y)).size() < 100000);
}

TEST_CASE("a chart is dark on white, or light on dark for readers who prefer that", "[line_chart]") {
  const auto svg = line_chart_svg(chart_with({0, 1}, {1, 2}), 640, 400);
  CHECK_THAT(svg, ContainsSubstring("viewBox=\"0 0 640 400\""));
  CHECK_THAT(svg, ContainsSubstring("height=\"400.00\" class=\"ground\" fill=\"#ffffff\""));
  CHECK_THAT(svg,
             ContainsSubstring("(prefers-color-scheme: dark) {\n.ground:not([stroke]) { fill: #16191d; }"));
  CHECK_THAT(svg, ContainsSubstring(".c0[stroke] { stroke: "));
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("names of any length and any bytes are drawn", "[line_chart]") {
  LineChart chart = chart_with({0, 1}, {1, 2});
  chart.title = std::string(10000, 'm');
  chart.series[0].name = "\xff\x01 </text><a> & \"loss\" \xe2\x82\xac";
  for (int i = 0; i < 200; ++i) chart.series.push_back({"a rather long name of a curve", {0, 1}, {1, 2}});
  const TempDir dir;
  write_file_atomic(dir.path() / "chart.svg", line_chart_svg(chart, 300, 200));
  write_file_atomic(dir.path() / "matrix.svg", confusion_matrix_svg({{"<a>", "\xff"}, {1, 2, 3, 4}}, "<&>"));
  test::check_python(dir.path(), "xml.etree", R"(
from xml.etree import ElementTree
chart, matrix = (ElementTree.parse(name + '.svg').getroot() for name in ('chart', 'matrix'))
texts = lambda file: [element.text for element in file if element.tag.endswith('}text')]
assert texts(chart)[0].startswith('mmm') and texts(chart)[0].endswith('m...'), texts(chart)
assert '</text><a> & "loss" €' in texts(chart)[1], texts(chart)
assert any(text.startswith('and 19') for text in texts(chart)), texts(chart)
assert texts(matrix)[0] == '<&>: 50.00 % of 10 right' and '<a>' in texts(matrix), texts(matrix)
)");
}

TEST_CASE("a chart that makes no sense is refused", "[line_chart]") {
  CHECK_THROWS_WITH(line_chart_svg(chart_with({0, 1}, {1})),
                    ContainsSubstring("'train_loss' has 2 x and 1 y"));
  CHECK_THROWS_WITH(line_chart_svg({}, 199, 500),
                    ContainsSubstring("at least 200 x 150 pixels, got 199 x 500"));
}

TEST_CASE("a confusion matrix shades right and wrong cells", "[confusion_matrix]") {
  const auto all_right = confusion_matrix_svg({{"cat", "dog"}, {10, 0, 0, 10}});
  const auto all_wrong = confusion_matrix_svg({{"cat", "dog"}, {0, 10, 10, 0}});
  CHECK(count_in(all_right, "class=\"right\"") == 2);
  CHECK(count_in(all_right, "class=\"wrong\"") == 0);
  CHECK(count_in(all_wrong, "class=\"wrong\"") == 2);
  CHECK(count_in(all_wrong, "class=\"right\"") == 0);
  CHECK(count_in(all_right, ">10</text>") == 2);
  CHECK_THAT(all_right, ContainsSubstring("confusion matrix: 100.00 % of 20 right"));
  const auto cells = cells_of({{"cat", "dog"}, {3, 1, 0, 0}});
  REQUIRE(cells.size() == 2);
  CHECK(cells[0].strength > cells[1].strength);
  CHECK(cells[1].column == 1);
}

TEST_CASE("confusion matrices from one class to a thousand are drawn", "[confusion_matrix]") {
  for (const std::size_t classes : {1U, 10U, 100U, 1000U}) {
    ConfusionMatrix matrix;
    for (std::size_t i = 0; i < classes; ++i) matrix.classes.push_back("a class " + std::to_string(i));
    matrix.counts.assign(classes * classes, 1);
    matrix.counts.back() = 2;
    CHECK(confusion_matrix_svg(matrix).size() < 3'000'000);
    CHECK(cells_of(matrix).size() == std::min(classes * classes, kMostCells));
    CHECK(cells_of(matrix).back().count == 2);
  }
  CHECK_THAT(confusion_matrix_svg({{"a", "b"}, {0, 0, 0, 0}}), ContainsSubstring(": no data"));
}

TEST_CASE("counts that do not form a matrix are refused", "[confusion_matrix]") {
  CHECK_THROWS_WITH(confusion_matrix_svg({{"a", "b"}, {1, 2, 3}}),
                    ContainsSubstring("2 classes have 4 counts, got 3"));
  CHECK_THROWS_AS(confusion_matrix_svg({{}, {}}), std::invalid_argument);
  CHECK_THROWS_AS(confusion_matrix_svg({{"a"}, {-1}}), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::report
