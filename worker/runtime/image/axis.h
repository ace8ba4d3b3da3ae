#pragma once

#include <string>
#include <vector>

namespace ddprun::image {

/// A scale of a chart: which values it shows, where, and where it is labelled.
struct Axis {
  struct Tick {
    double place = 0;  ///< from 0, the low end, to 1
    std::string label;
  };
  double low = 0, high = 1;  ///< of a logarithmic one, their decimal logarithms
  bool logarithmic = false;
  std::vector<Tick> ticks;

  /// Where a value is: 0 is the low end, 1 the high one. NaN for what has no place: a value that is not
  /// finite, or not above zero on a logarithmic scale.
  double place(double value) const;
};

struct AxisOptions {
  bool logarithmic = false;
  bool integer = false;  ///< ticks at whole numbers only
  double margin = 0;     ///< free at each end, as a share of the range
  int most_ticks = 8;    ///< at least 2
};

/// An axis for values from low to high, with ticks at 1, 2 or 5 times a power of ten. A range that is empty
/// or too narrow for doubles is widened; beyond 1e300 it ends.
///
/// low, high  finite, low <= high; above zero for a logarithmic one
Axis make_axis(double low, double high, const AxisOptions& options);

}  // namespace ddprun::image
