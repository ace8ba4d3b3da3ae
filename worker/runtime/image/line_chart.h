#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// One curve. A point whose x or y is no finite number leaves a gap, as one at or below zero does on a
/// logarithmic scale.
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

/// Curves with axes, grid and legend. Any number of points: neighbours that share a pixel column are drawn as
/// their range. No point at all gives an empty chart that says so.
///
/// width, height  pixels, at least 200 x 150
/// throws         std::invalid_argument if it is smaller, or a series' x and y differ in size
Image draw_line_chart(const LineChart& chart, int width = 800, int height = 500);

/// The same as an SVG file: sharp at any size, on a transparent ground.
std::string line_chart_svg(const LineChart& chart, int width = 800, int height = 500);

}  // namespace ddprun::image
