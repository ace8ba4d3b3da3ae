#pragma once

#include <vector>

#include <ddprun/image/axis.h>

namespace ddprun::image {

/// A point of a curve in pixels.
struct CurvePoint {
  double x = 0, y = 0;
};
/// Points that are joined by a line: between gaps.
using Stroke = std::vector<CurvePoint>;

/// The curve on its axes, in a plot whose low ends meet at (left, bottom).
///
/// Of neighbours in the same pixel column only the first, the lowest, the highest and the last are kept,
/// which look the same: there are at most 4 points a column if x rises.
std::vector<Stroke> strokes_of(const std::vector<double>& x, const std::vector<double>& y, const Axis& x_axis,
                               const Axis& y_axis, CurvePoint low_corner, double width, double height);

}  // namespace ddprun::image
