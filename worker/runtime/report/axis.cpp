#include <ddprun/report/axis.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <ddprun/common/text.h>

namespace ddprun::report {
namespace {

constexpr double kLargest = 1e300, kSmallest = 1e-290;  // leaves room for sums and quotients
constexpr double kRounding = 1e-9;

/// 1, 2 or 5 times a power of ten, such that at most most_ticks steps fit into the span.
double nice_step(double span, const AxisOptions& options) {
  const double rough = span / options.most_ticks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough * (1 - kRounding)) step = factor * power;
  return options.integer ? std::max(step, 1.0) : step;
}

/// The value with enough digits to distinguish it from its neighbours, a step away.
std::string label_of(double value, double step) {
  if (std::abs(value) < step * 1e-6) value = 0;  // rounding error
  const int step_exponent = static_cast<int>(std::floor(std::log10(step) + kRounding));
  if (value == 0 && step_exponent < -5) return "0";
  const int exponent = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::abs(value)) + kRounding));
  if (exponent < 7 && step_exponent >= -5) return formatted("%.*f", std::max(0, -step_exponent), value);
  return formatted("%.*e", std::clamp(exponent - step_exponent, 0, 15), value);
}

void add_linear_ticks(Axis& axis, const AxisOptions& options) {
  const double step = nice_step(axis.high - axis.low, options);
  const double first = std::ceil(axis.low / step - kRounding);
  for (int i = 0; i <= options.most_ticks; ++i) {
    const double value = (first + i) * step;
    const double place = axis.place(value);
    if (place <= 1 + kRounding) axis.ticks.push_back({place, label_of(value, step)});
  }
}

std::string power_label(double exponent, int factor) {
  if (exponent < -3 || exponent > 4) return formatted("%de%.0f", factor, exponent);
  return formatted("%.*f", std::max(0, static_cast<int>(-exponent)), factor * std::pow(10, exponent));
}

void add_log_ticks(Axis& axis, const AxisOptions& options) {
  const double span = axis.high - axis.low;
  const double stride = std::max(1.0, std::ceil(span / options.most_ticks));
  const bool between = span < options.most_ticks / 3.0;  // room for 2 and 5
  for (double power = std::floor(axis.low / stride) * stride; power <= axis.high + kRounding;
       power += stride) {
    for (const int factor : {1, 2, 5}) {
      const double place = (power + std::log10(factor) - axis.low) / span;
      if ((factor == 1 || between) && place >= -kRounding && place <= 1 + kRounding)
        axis.ticks.push_back({place, power_label(power, factor)});
    }
  }
}

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

double Axis::place(double value) const {
  constexpr double kNowhere = std::numeric_limits<double>::quiet_NaN();
  if (!std::isfinite(value) || (logarithmic && value <= 0)) return kNowhere;
  const double at = logarithmic ? std::log10(value) : std::clamp(value, -kLargest, kLargest);
  return (at - low) / (high - low);
}

Axis make_axis(double low, double high, const AxisOptions& options) {
  Axis axis;
  axis.logarithmic = options.logarithmic;
  axis.low = options.logarithmic ? std::log10(low) : std::clamp(low, -kLargest, kLargest);
  axis.high = options.logarithmic ? std::log10(high) : std::clamp(high, -kLargest, kLargest);
  const double span = axis.high - axis.low;
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  double margin = options.margin * span;
  if (options.logarithmic) {
    margin = std::max(margin, (0.4 - span) / 2);  // always shows a 1, 2 or 5
  } else if (options.integer && span < 1) {
    margin = std::max(1.0, 1e-12 * largest);
  } else if (span <= std::max(1e-12 * largest, kSmallest)) {
    margin = largest > kSmallest ? 0.1 * largest : 1;
  }
  axis.low -= margin;
  axis.high += margin;
  options.logarithmic ? add_log_ticks(axis, options) : add_linear_ticks(axis, options);
  return axis;
}

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

}  // namespace ddprun::report
