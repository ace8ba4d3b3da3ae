#pragma once

#include <string>
#include <vector>

namespace ddprun::report {

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
