#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

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

/// Draws curves with axes, grid and legend. Any number of points: neighbours in the same pixel column are
/// drawn as their range. Without points the chart says "no data".
///
/// width, height  units (kPixelScale), at least 200 x 150
/// throws         std::invalid_argument if smaller, or if a series' x and y differ in length
Image draw_line_chart(const LineChart& chart, int width = 800, int height = 500);

/// The same as an SVG file with a transparent ground.
std::string line_chart_svg(const LineChart& chart, int width = 800, int height = 500);

}  // namespace ddprun::image
