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
  bool log_x = false, log_y = false;
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

// What a line chart is made of.

/// A chart's scale: the range of values and the places of ticks.
struct Axis {
  struct Tick {
    double place = 0;  ///< from 0, the low end, to 1
    std::string label;
  };
  double low = 0, high = 1;  ///< decimal logarithms, if logarithmic
  bool logarithmic = false;
  std::vector<Tick> ticks;

  /// Where a value lies: 0 is the low end, 1 the high one. NaN for a value that is not finite, or not above
  /// zero on a logarithmic scale.
  double place(double value) const;
};

struct AxisOptions {
  bool logarithmic = false;
  bool integer = false;  ///< ticks at whole numbers only
  double margin = 0;     ///< free space at each end, as a share of the range
  int most_ticks = 8;    ///< at least 2
};

/// An axis for values from low to high, with ticks at 1, 2 or 5 times a power of ten. Widens ranges that are
/// empty or too narrow for doubles, and cuts them at 1e300.
///
/// low, high  finite, low <= high; above zero for a logarithmic one
Axis make_axis(double low, double high, const AxisOptions& options);

/// A point of a curve in pixels.
struct CurvePoint {
  double x = 0, y = 0;
};
/// Points joined by a line, between two gaps.
using Stroke = std::vector<CurvePoint>;

/// The curve on its axes, in a plot whose axes start at low_corner.
///
/// Of neighbours in the same pixel column it keeps only the first, lowest, highest and last, which look the
/// same: at most 4 points per column if x rises.
std::vector<Stroke> strokes_of(const std::vector<double>& x, const std::vector<double>& y, const Axis& x_axis,
                               const Axis& y_axis, CurvePoint low_corner, double width, double height);

}  // namespace ddprun::report
