#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ddprun/image/confusion_matrix.h>
#include <ddprun/image/drawing.h>
#include <ddprun/image/image_grid.h>
#include <ddprun/image/line_chart.h>
#include "tests/support/catch.h"

namespace ddprun::image {
namespace {

using test::ContainsSubstring;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr double kSharp = 3, kSmoothed = 90;  // how far a pixel may be from the colour, in 1/255

bool is_near(const std::uint8_t* pixel, Colour colour, double tolerance) {
  const double wanted[] = {colour.red, colour.green, colour.blue};
  for (int i = 0; i < 3; ++i)
    if (std::abs(pixel[i] - 255 * wanted[i]) > tolerance) return false;
  return true;
}

/// Columns of the picture's part below title and legend that show the colour.
std::vector<int> columns_with(const Image& image, Colour colour, double tolerance = kSmoothed) {
  std::vector<int> columns;
  for (int x = 0; x < image.width; ++x) {
    for (int y = image.height / 7; y < image.height; ++y) {
      if (!is_near(image.pixel(x, y), colour, tolerance)) continue;
      columns.push_back(x);
      break;
    }
  }
  return columns;
}

LineChart chart_with(std::vector<double> x, std::vector<double> y, bool log_y = false) {
  return {
      .title = "loss", .x_label = "step", .y_label = "", .series = {{"train_loss", x, y}}, .log_y = log_y};
}

TEST_CASE("a curve goes from one side of the chart to the other", "[line_chart]") {
  const auto image = draw_line_chart(chart_with({0, 1, 2, 3}, {4, 3, 2, 1}));
  CHECK(image.width == 800 * kPixelScale);
  CHECK(image.height == 500 * kPixelScale);
  CHECK(image.channels == 3);
  const auto columns = columns_with(image, colour_of(0));
  REQUIRE(!columns.empty());
  CHECK(columns.front() < 80 * kPixelScale);
  CHECK(columns.back() > 740 * kPixelScale);
  CHECK(columns.size() > 600 * kPixelScale);
}

TEST_CASE("each curve has its colour", "[line_chart]") {
  LineChart chart;
  for (int i = 0; i < 7; ++i)
    chart.series.push_back({"curve " + std::to_string(i), {0, 1}, {0.0 + i, 1.0 + i}});
  const auto image = draw_line_chart(chart);
  for (std::size_t i = 0; i < 7; ++i) CHECK(columns_with(image, colour_of(i), kSharp).size() > 50);
}

TEST_CASE("points that are absent leave a gap in the curve", "[line_chart]") {
  std::vector<double> x, y;
  for (int i = 0; i <= 1000; ++i) {
    x.push_back(i);
    y.push_back(i > 400 && i < 600 ? kNaN : 1 + i % 7);
  }
  const auto columns = columns_with(draw_line_chart(chart_with(x, y)), colour_of(0));
  int widest_gap = 0;
  for (std::size_t i = 1; i < columns.size(); ++i)
    widest_gap = std::max(widest_gap, columns[i] - columns[i - 1]);
  CHECK(widest_gap > 120 * kPixelScale);
  CHECK(widest_gap < 180 * kPixelScale);
}

TEST_CASE("a point alone is a dot", "[line_chart]") {
  CHECK(columns_with(draw_line_chart(chart_with({5}, {0.25})), colour_of(0)).size() >= 3);
  std::vector<double> x, y;
  for (int i = 0; i < 200; ++i) {
    x.push_back(i);
    y.push_back(i % 2 == 0 ? 1 : kNaN);
  }
  CHECK(columns_with(draw_line_chart(chart_with(x, y)), colour_of(0)).size() > 200);
}

TEST_CASE("a chart without a point is drawn all the same", "[line_chart]") {
  const auto empty = draw_line_chart(chart_with({}, {}));
  CHECK(empty.bytes.size() == 800U * 500 * 3 * kPixelScale * kPixelScale);
  CHECK(columns_with(empty, colour_of(0)).empty());
  CHECK(columns_with(draw_line_chart(chart_with({1, 2}, {kNaN, kInf})), colour_of(0)).empty());
  CHECK(columns_with(draw_line_chart(chart_with({1, 2}, {0, -1}, true)), colour_of(0)).empty());
  CHECK_NOTHROW(draw_line_chart({}));
}

TEST_CASE("values of any size are drawn", "[line_chart]") {
  for (const bool log_y : {false, true}) {
    for (const auto& y : std::vector<std::vector<double>>{{7, 7, 7},
                                                          {1e-30, 1e-30, 1e-30},
                                                          {1e300, 1e-300, 1e308},
                                                          {5e-324, 1e-320, 1e-310},
                                                          {1e15, 1e15 + 1, 1e15 + 2}}) {
      INFO(y[0] << ' ' << log_y);
      CHECK(!columns_with(draw_line_chart(chart_with({0, 1, 2}, y, log_y)), colour_of(0)).empty());
    }
  }
  CHECK(!columns_with(draw_line_chart(chart_with({0, 1}, {-1e308, 1e308})), colour_of(0)).empty());
}

TEST_CASE("a hundred thousand points make a chart of the usual size", "[line_chart]") {
  std::vector<double> x, y;
  for (int i = 0; i < 100000; ++i) {
    x.push_back(i);
    y.push_back(std::exp(-i / 3e4) + 0.1 * std::sin(i * 0.7));
  }
  CHECK(columns_with(draw_line_chart(chart_with(x, y)), colour_of(0)).size() > 650);
  CHECK(line_chart_svg(chart_with(x, y)).size() < 300000);
}

TEST_CASE("the SVG of a chart is one file of that size", "[line_chart]") {
  const auto svg = line_chart_svg(chart_with({0, 1}, {1, 2}), 640, 400);
  CHECK_THAT(svg, ContainsSubstring("<svg"));
  CHECK_THAT(svg, ContainsSubstring("viewBox=\"0 0 640 400\""));
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("names of any length and any bytes are drawn", "[line_chart]") {
  LineChart chart = chart_with({0, 1}, {1, 2});
  chart.title = std::string(10000, 'm');
  chart.series[0].name = "\xff\x01 loss \xe2\x82\xac";
  for (int i = 0; i < 200; ++i) chart.series.push_back({"a rather long name of a curve", {0, 1}, {1, 2}});
  const auto image = draw_line_chart(chart, 300, 200);
  CHECK(image.width == 300 * kPixelScale);
}

TEST_CASE("a chart that makes no sense is refused", "[line_chart]") {
  CHECK_THROWS_WITH(draw_line_chart(chart_with({0, 1}, {1})),
                    ContainsSubstring("'train_loss' has 2 x and 1 y"));
  CHECK_THROWS_WITH(draw_line_chart({}, 199, 500),
                    ContainsSubstring("at least 200 x 150 pixels, got 199 x 500"));
}

TEST_CASE("a confusion matrix shades right and wrong cells", "[confusion_matrix]") {
  const auto all_right = draw_confusion_matrix({{"cat", "dog"}, {10, 0, 0, 10}});
  const auto all_wrong = draw_confusion_matrix({{"cat", "dog"}, {0, 10, 10, 0}});
  const Colour right{0.03, 0.32, 0.58}, wrong{0.78, 0.25, 0.05};
  CHECK(columns_with(all_right, right, kSharp).size() > 400);
  CHECK(columns_with(all_right, wrong, kSharp).empty());
  CHECK(columns_with(all_wrong, wrong, kSharp).size() > 400);
  CHECK(columns_with(all_wrong, right, kSharp).empty());
}

TEST_CASE("confusion matrices from one class to a thousand are drawn", "[confusion_matrix]") {
  for (const std::size_t classes : {1U, 10U, 100U, 1000U}) {
    ConfusionMatrix matrix;
    for (std::size_t i = 0; i < classes; ++i) matrix.classes.push_back("a class " + std::to_string(i));
    matrix.counts.assign(classes * classes, 1);
    CHECK(draw_confusion_matrix(matrix).width == 720 * kPixelScale);
  }
  CHECK_NOTHROW(draw_confusion_matrix({{"a", "b"}, {0, 0, 0, 0}}));
}

TEST_CASE("counts that do not form a matrix are refused", "[confusion_matrix]") {
  CHECK_THROWS_WITH(draw_confusion_matrix({{"a", "b"}, {1, 2, 3}}),
                    ContainsSubstring("2 classes have 4 counts, got 3"));
  CHECK_THROWS_AS(draw_confusion_matrix({{}, {}}), std::invalid_argument);
  CHECK_THROWS_AS(draw_confusion_matrix({{"a"}, {-1}}), std::invalid_argument);
}

TEST_CASE("a grid shows every pixel of its pictures, enlarged", "[image_grid]") {
  auto picture = make_image(28, 28, 3, 0);
  std::copy_n(std::array<std::uint8_t, 3>{10, 200, 30}.data(), 3, picture.pixel(27, 27));
  const auto grid =
      draw_image_grid({{picture, "pred 3 / true 3"}, {picture, "pred 1 / true 7", true}}, "", 2);
  int green = 0, red = 0;
  for (int y = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x) {
      const auto* pixel = grid.pixel(x, y);
      green += pixel[0] == 10 && pixel[1] == 200 && pixel[2] == 30;
      red += pixel[0] == 199 && pixel[1] == 26 && pixel[2] == 26;
    }
  }
  CHECK(green == 2 * 4 * 4 * kPixelScale * kPixelScale);  // 112 / 28 units a side
  CHECK(red > 4 * 112 * 2);                               // the frame of the wrong one
}

TEST_CASE("a caption may have several lines, for which every row has room", "[image_grid]") {
  const auto picture = make_image(28, 28, 1);
  const auto one = draw_image_grid({{picture, "a"}, {picture, "b"}}, "", 1);
  const auto two = draw_image_grid({{picture, "pred automobile\ntrue airplane"}, {picture, "b"}}, "", 1);
  CHECK(two.height == one.height + 2 * 15 * kPixelScale);
  CHECK(two.width == one.width);
}

TEST_CASE("grids of any number of tiles and any pictures are drawn", "[image_grid]") {
  CHECK(draw_image_grid({}).channels == 4);
  std::vector<Tile> tiles;
  for (int i = 0; i < 37; ++i)
    tiles.push_back({make_image(1 + i, 1 + 20 * i % 50, i % 3 == 0 ? 1 : 3 + i % 2), "x"});
  const auto grid = draw_image_grid(tiles, "samples");
  CHECK(grid.width > grid.height / 2);
  CHECK(grid.width < grid.height * 2);
  CHECK_NOTHROW(draw_image_grid({{make_image(2000, 10, 1), std::string(5000, 'w')}}));
  CHECK_THROWS_AS(draw_image_grid({{make_image(3, 3, 2), ""}}), std::invalid_argument);
}

TEST_CASE("what is transparent shows white", "[image]") {
  const Image image{2, 1, 4, {10, 20, 30, 0, 10, 20, 30, 255}};
  CHECK(to_rgb(image).bytes == std::vector<std::uint8_t>{255, 255, 255, 10, 20, 30});
}

}  // namespace
}  // namespace ddprun::image
