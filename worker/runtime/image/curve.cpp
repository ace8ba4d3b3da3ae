#include <ddprun/image/curve.h>

#include <algorithm>
#include <cmath>

namespace ddprun::image {
namespace {

/// Appends a run of points that share a pixel column.
void append_column(Stroke& stroke, const CurvePoint* begin, const CurvePoint* end) {
  const auto [lowest, highest] =
      std::minmax_element(begin, end, [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
  const CurvePoint* kept[] = {begin, std::min(lowest, highest), std::max(lowest, highest), end - 1};
  const CurvePoint* last = nullptr;
  for (const auto* point : kept) {
    if (point != last) stroke.push_back(*point);
    last = point;
  }
}

Stroke thinned(const Stroke& stroke) {
  Stroke thin;
  for (std::size_t begin = 0, end = 0; begin < stroke.size(); begin = end) {
    while (end < stroke.size() && std::floor(stroke[end].x) == std::floor(stroke[begin].x)) ++end;
    append_column(thin, stroke.data() + begin, stroke.data() + end);
  }
  return thin;
}

}  // namespace

std::vector<Stroke> strokes_of(const std::vector<double>& x, const std::vector<double>& y, const Axis& x_axis,
                               const Axis& y_axis, CurvePoint low_corner, double width, double height) {
  std::vector<Stroke> strokes(1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double across = x_axis.place(x[i]), up = y_axis.place(y[i]);
    if (!std::isnan(across) && !std::isnan(up)) {
      strokes.back().push_back({low_corner.x + across * width, low_corner.y - up * height});
    } else if (!strokes.back().empty()) {
      strokes.emplace_back();
    }
  }
  if (strokes.back().empty()) strokes.pop_back();
  for (auto& stroke : strokes) stroke = thinned(stroke);
  return strokes;
}

}  // namespace ddprun::image
