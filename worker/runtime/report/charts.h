#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::report {

/// One curve. Points that are not finite, or not above zero on a logarithmic scale, leave gaps.
struct Series {
  std::string name;       ///< in the legend
  std::vector<double> x;  ///< as many as y
  std::vector<double> y;
};

struct LineChart {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<Series> series = {};
  bool log_y = false;
  bool integer_x = false;  ///< ticks at whole numbers only: steps, epochs
};

/// Draws curves with axes, grid and legend as an SVG file: dark on white, or light on dark for readers who
/// prefer that. Any number of points: neighbours in the same column of a pixel's width are drawn as their
/// range. Without points the chart says "no data".
///
/// width, height  pixels on a page, at least 200 x 150
/// throws         std::invalid_argument if smaller, or if a series' x and y differ in length
std::string line_chart_svg(const LineChart& chart, int width = 800, int height = 500);

/// How often class `row` was predicted as class `column`.
struct ConfusionMatrix {
  std::vector<std::string> classes;
  std::vector<std::int64_t> counts;  ///< classes x classes, row by row; rows are the true classes
};

/// A cell's place, and how strongly it is coloured, from above 0 to 1. Cells without a count are left out.
struct ConfusionCell {
  std::size_t row = 0, column = 0;
  std::int64_t count = 0;
  double strength = 0;
};

/// At most this many cells are drawn: those with the highest counts.
constexpr std::size_t kMostCells = 10'000;

/// The cells to draw, row by row.
/// throws  std::invalid_argument unless there are classes squared counts, all >= 0, and 1 .. 1000 classes
std::vector<ConfusionCell> cells_of(const ConfusionMatrix& matrix);

/// Draws the cells as an SVG file, with counts where they fit, and the accuracy in the title.
///
/// size    pixels of each side on a page, at least 200
/// throws  std::invalid_argument if smaller, or as cells_of()
std::string confusion_matrix_svg(const ConfusionMatrix& matrix, const std::string& title = "confusion matrix",
                                 int size = 720);

}  // namespace ddprun::report
