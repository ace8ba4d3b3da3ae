#include <ddprun/report/charts.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <ddprun/common/text.h>
#include <ddprun/report/html_report.h>

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

constexpr double kChartPadding = 14, kLineHeight = 20;

/// What a part of a drawing is coloured as, on a white ground and on a dark one.
struct Ink {
  const char* name;
  const char* light;
  const char* dark;
};
constexpr Ink kGround{"ground", "#ffffff", "#16191d"}, kInk{"ink", "#212429", "#e6e8ea"},
    kQuietInk{"quiet", "#61666e", "#9aa1a9"}, kGridLine{"grid", "#dee0e6", "#30373f"},
    kOnCell{"on", "#ffffff", "#ffffff"}, kRight{"right", "#085294", "#3b82f6"},
    kWrong{"wrong", "#c7400d", "#f97316"};
/// The curves' colours, as in page.css.
constexpr std::array<Ink, 8> kCurves = {{{"c0", "#2563eb", "#6ea8fe"},
                                         {"c1", "#ea580c", "#fb923c"},
                                         {"c2", "#16a34a", "#4ade80"},
                                         {"c3", "#c026d3", "#e879f9"},
                                         {"c4", "#0891b2", "#22d3ee"},
                                         {"c5", "#ca8a04", "#facc15"},
                                         {"c6", "#dc2626", "#f87171"},
                                         {"c7", "#7c3aed", "#a78bfa"}}};

struct TextStyle {
  double size = 13;
  const char* anchor = "start";
  Ink ink = kInk;
  bool bold = false;
};
constexpr TextStyle kTitle{.size = 16, .bold = true};
constexpr TextStyle kLabel{.anchor = "middle", .ink = kQuietInk};
constexpr TextStyle kXTick{.size = 12, .anchor = "middle", .ink = kQuietInk};
constexpr TextStyle kYTick{.size = 12, .anchor = "end", .ink = kQuietInk};
constexpr TextStyle kLegend{};

/// The text as one line, cut to what anyone would read.
std::string showable(std::string_view text) { return one_line(valid_utf8(text.substr(0, 400))); }

/// At most this wide in any usual font: the reader's computer chooses it.
double text_width(std::string_view text, double size) {
  double width = 0;
  for (const char c : text)
    if (!is_continuation(c)) width += size * (static_cast<unsigned char>(c) < 0x80 ? 0.6 : 1.0);
  return width;
}

/// The text, ending in "..." if it is wider than this.
std::string fitted(std::string_view text, double width, double size) {
  auto cut = showable(text);
  if (text_width(cut, size) <= width) return cut;
  while (!cut.empty() && text_width(cut + "...", size) > width) {
    while (is_continuation(cut.back())) cut.pop_back();
    cut.pop_back();
  }
  return cut.empty() ? "" : cut + "...";
}

/// Writes an SVG file, shape by shape.
class Svg {
 public:
  Svg(int width, int height) {
    text_ = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\">\n<style>\n"
        "@media (prefers-color-scheme: dark) {\n",
        width, height, width, height);
    for (const auto& ink : {kGround, kInk, kQuietInk, kGridLine, kRight, kWrong}) add_dark(ink);
    for (const auto& ink : kCurves) add_dark(ink);
    text_ += "}\n</style>\n";
    rectangle(0, 0, width, height, kGround);
  }

  void text(double x, double y, std::string_view words, const TextStyle& style, bool upwards = false) {
    constexpr double kHalfHeight = 0.36;  // of a capital letter, relative to the font size
    if (words.empty()) return;
    const auto turn = upwards ? formatted(" transform=\"rotate(-90 %.2f %.2f)\"", x, y) : "";
    text_ += formatted("<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.4g\" text-anchor=\"%s\"%s%s%s>", x,
                       y + kHalfHeight * style.size, style.size, style.anchor,
                       style.bold ? " font-weight=\"bold\"" : "", turn.c_str(),
                       painted("fill", style.ink).c_str()) +
             html_text(showable(words)) + "</text>\n";
  }

  void rectangle(double x, double y, double width, double height, Ink ink, double opacity = 1) {
    text_ += formatted("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"%s", x, y, width, height,
                       painted("fill", ink).c_str());
    text_ += opacity < 1 ? formatted(" fill-opacity=\"%.3f\"/>\n", opacity) : "/>\n";
  }

  void circle(CurvePoint at, Ink ink) {
    text_ += formatted("<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.6\"%s/>\n", at.x, at.y,
                       painted("fill", ink).c_str());
  }

  void line(const Stroke& points, Ink ink, double width, bool dashed = false) {
    text_ += "<polyline fill=\"none\"" + painted("stroke", ink) +
             formatted(" stroke-width=\"%.4g\" stroke-linejoin=\"round\"%s points=\"", width,
                       dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (const auto& [x, y] : points) text_ += formatted("%.2f,%.2f ", x, y);
    text_ += "\"/>\n";
  }

  /// A thin line on whole pixels, which keeps it sharp.
  void thin_line(double x0, double y0, double x1, double y1, Ink ink) {
    line({{std::floor(x0) + 0.5, std::floor(y0) + 0.5}, {std::floor(x1) + 0.5, std::floor(y1) + 0.5}}, ink,
         1);
  }

  std::string file() && { return std::move(text_) + "</svg>\n"; }

 private:
  void add_dark(const Ink& ink) {
    text_ += formatted(".%s:not([stroke]) { fill: %s; }\n.%s[stroke] { stroke: %s; }\n", ink.name, ink.dark,
                       ink.name, ink.dark);
  }
  /// The attribute, which every program knows, and the class that replaces it for some readers.
  static std::string painted(const char* property, const Ink& ink) {
    return formatted(" class=\"%s\" %s=\"%s\"", ink.name, property, ink.light);
  }

  std::string text_;
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

struct Axes {
  Axis x, y;
  bool empty = false;
};

Axes axes_of(const LineChart& chart, int most_x_ticks, int most_y_ticks) {
  Range x, y;
  for (const auto& series : chart.series) {
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i]) || (chart.log_x && series.x[i] <= 0) ||
          (chart.log_y && series.y[i] <= 0))
        continue;
      x.add(series.x[i]);
      y.add(series.y[i]);
    }
  }
  const bool empty = x.low > x.high;
  if (empty) x = {chart.log_x ? 0.1 : 0, 1}, y = {chart.log_y ? 0.1 : 0, 1};
  return {make_axis(x.low, x.high,
                    {.logarithmic = chart.log_x,
                     .integer = chart.integer_x,
                     .margin = 0.02,
                     .most_ticks = most_x_ticks}),
          make_axis(y.low, y.high, {.logarithmic = chart.log_y, .margin = 0.05, .most_ticks = most_y_ticks}),
          empty};
}

Ink ink_of(std::size_t series) { return kCurves[series % kCurves.size()]; }
bool is_dashed(std::size_t series) { return series / kCurves.size() % 2 == 1; }  // once the colours repeat

/// Shows as many names as fit into a third of the height. returns  its lower end
double draw_legend(Svg& svg, const LineChart& chart, double top, int width, int height) {
  constexpr double kSample = 22, kBetween = 18;
  double x = kChartPadding;
  const double lowest = top + height / 3.0 - 2 * kLineHeight;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const auto name = fitted(chart.series[i].name, width - 2 * kChartPadding - kSample - 6, kLegend.size);
    const double needed = kSample + 6 + text_width(name, kLegend.size);
    if (x > kChartPadding && x + needed > width - kChartPadding) {
      x = kChartPadding;
      top += kLineHeight;
      if (top > lowest) {
        svg.text(x, top + kLineHeight / 2, formatted("and %zu more", chart.series.size() - i), kLegend);
        break;
      }
    }
    const double y = top + kLineHeight / 2;
    svg.line({{x, y}, {x + kSample, y}}, ink_of(i), 1.8, is_dashed(i));
    svg.text(x + kSample + 6, y, name, kLegend);
    x += needed + kBetween;
  }
  return chart.series.empty() ? top : top + kLineHeight;
}

void draw_series(Svg& svg, const std::vector<Stroke>& strokes, std::size_t index) {
  constexpr std::size_t kMostMarkers = 60;  // with more points, only the line is drawn
  std::size_t points = 0;
  for (const auto& stroke : strokes) {
    svg.line(stroke, ink_of(index), 1.8, is_dashed(index));
    points += stroke.size();
  }
  for (const auto& stroke : strokes)
    if (points <= kMostMarkers || stroke.size() == 1)  // a single point has no line
      for (const auto& point : stroke) svg.circle(point, ink_of(index));
}

void check(const ConfusionMatrix& matrix) {
  const auto classes = matrix.classes.size();
  if (classes < 1 || classes > 1000)
    throw std::invalid_argument(formatted("from 1 to 1000 classes can be drawn, got %zu", classes));
  if (matrix.counts.size() != classes * classes)
    throw std::invalid_argument(
        formatted("%zu classes have %zu counts, got %zu", classes, classes * classes, matrix.counts.size()));
  if (std::ranges::any_of(matrix.counts, [](auto count) { return count < 0; }))
    throw std::invalid_argument("a count is below zero");
}

std::string accuracy_text(const ConfusionMatrix& matrix) {
  double correct = 0, all = 0;
  for (std::size_t i = 0; i < matrix.counts.size(); ++i) {
    all += static_cast<double>(matrix.counts[i]);
    if (i % (matrix.classes.size() + 1) == 0) correct += static_cast<double>(matrix.counts[i]);
  }
  return all == 0 ? "no data" : formatted("%.2f %% of %.0f right", 100 * correct / all, all);
}

void draw_cell(Svg& svg, const ConfusionCell& cell, double left, double top, double side) {
  const double x = left + side * static_cast<double>(cell.column),
               y = top + side * static_cast<double>(cell.row);
  svg.rectangle(x, y, side, side, cell.row == cell.column ? kRight : kWrong, cell.strength);
  const auto text = formatted("%lld", static_cast<long long>(cell.count));
  double size = std::min(13.0, side * 0.36);
  if (const double width = text_width(text, size); width > side - 4) size *= (side - 4) / width;
  if (size >= 6)
    svg.text(x + side / 2, y + side / 2, text,
             {.size = size, .anchor = "middle", .ink = cell.strength > 0.55 ? kOnCell : kInk});
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

std::string line_chart_svg(const LineChart& chart, int width, int height) {
  if (width < 200 || height < 150)
    throw std::invalid_argument(
        formatted("a chart has at least 200 x 150 pixels, got %d x %d", width, height));
  for (const auto& series : chart.series)
    if (series.x.size() != series.y.size())
      throw std::invalid_argument("the curve '" + series.name +
                                  formatted("' has %zu x and %zu y", series.x.size(), series.y.size()));
  Svg svg(width, height);
  double top = kChartPadding;
  if (!chart.title.empty()) {
    svg.text(kChartPadding, top + kLineHeight / 2,
             fitted(chart.title, width - 2 * kChartPadding, kTitle.size), kTitle);
    top += kLineHeight + 6;
  }
  top = draw_legend(svg, chart, top, width, height) + 10;
  const auto axes = axes_of(chart, std::max(2, width / 90), std::max(2, height / 50));
  double widest = 0;
  for (const auto& tick : axes.y.ticks) widest = std::max(widest, text_width(tick.label, kYTick.size));
  const double left = kChartPadding + (chart.y_label.empty() ? 0 : kLineHeight) + widest + 8,
               right = width - kChartPadding - 6,
               bottom = height - kChartPadding - kLineHeight - (chart.x_label.empty() ? 0 : kLineHeight);

  for (const auto& tick : axes.y.ticks) {
    const double y = bottom - tick.place * (bottom - top);
    svg.thin_line(left, y, right, y, kGridLine);
    svg.text(left - 8, y, tick.label, kYTick);
  }
  double free_from = 0;  // where the next label may start
  for (const auto& tick : axes.x.ticks) {
    const double x = left + tick.place * (right - left), half = text_width(tick.label, kXTick.size) / 2;
    svg.thin_line(x, top, x, bottom, kGridLine);
    if (x - half < free_from) continue;
    svg.text(std::min(x, width - half - 2), bottom + kLineHeight / 2 + 2, tick.label, kXTick);
    free_from = x + half + 8;
  }
  svg.thin_line(left, bottom, right, bottom, kQuietInk);
  svg.thin_line(left, top, left, bottom, kQuietInk);
  const double centre = (left + right) / 2, middle = (top + bottom) / 2;
  svg.text(centre, height - kChartPadding - kLineHeight / 2 + 4, chart.x_label, kLabel);
  svg.text(kChartPadding + 4, middle, chart.y_label, kLabel, /*upwards=*/true);
  if (axes.empty) svg.text(centre, middle, "no data", {.size = 16, .anchor = "middle", .ink = kQuietInk});
  for (std::size_t i = 0; i < chart.series.size(); ++i)
    draw_series(svg,
                strokes_of(chart.series[i].x, chart.series[i].y, axes.x, axes.y, {left, bottom}, right - left,
                           bottom - top),
                i);
  return std::move(svg).file();
}

std::vector<ConfusionCell> cells_of(const ConfusionMatrix& matrix) {
  check(matrix);
  const auto classes = matrix.classes.size();
  std::vector<ConfusionCell> cells;
  for (std::size_t row = 0; row < classes; ++row) {
    const auto* counts = matrix.counts.data() + row * classes;
    double sum = 0;
    for (std::size_t column = 0; column < classes; ++column) sum += static_cast<double>(counts[column]);
    for (std::size_t column = 0; column < classes; ++column)
      if (counts[column] > 0)  // the square root makes one mistake in a hundred visible
        cells.push_back({row, column, counts[column],
                         0.06 + 0.94 * std::sqrt(static_cast<double>(counts[column]) / sum)});
  }
  if (cells.size() <= kMostCells) return cells;
  std::ranges::stable_sort(cells, std::greater(), &ConfusionCell::count);
  cells.resize(kMostCells);
  std::ranges::sort(cells, {}, [](const auto& cell) { return std::pair(cell.row, cell.column); });
  return cells;
}

std::string confusion_matrix_svg(const ConfusionMatrix& matrix, const std::string& title, int size) {
  if (size < 200) throw std::invalid_argument(formatted("a chart has at least 200 pixels, got %d", size));
  const auto cells = cells_of(matrix);
  const auto classes = static_cast<double>(matrix.classes.size());
  const double most = size * 0.2;  // for names
  TextStyle names{.size = std::clamp(size * 0.55 / classes, 7.0, 13.0), .anchor = "end", .ink = kQuietInk};
  double widest = 0;
  for (const auto& name : matrix.classes)
    widest = std::max(widest, std::min(most, text_width(showable(name), names.size)));
  const bool turned = widest > size * 0.7 / classes;  // they do not fit side by side under the columns
  const double left = kChartPadding + 20 + widest + 6, top = kChartPadding + 36,
               below = std::max(24.0, turned ? widest + 10 : 0) + 24,
               side = std::min(size - left - kChartPadding, size - top - below) / classes,
               whole = side * classes;

  Svg svg(size, size);
  svg.text(kChartPadding, kChartPadding + 8, title + ": " + accuracy_text(matrix), kTitle);
  for (const auto& cell : cells) draw_cell(svg, cell, left, top, side);
  svg.line({{left, top}, {left + whole, top}, {left + whole, top + whole}, {left, top + whole}, {left, top}},
           kQuietInk, 1);
  const auto stride = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(9 / side)));
  for (std::size_t i = 0; i < matrix.classes.size(); i += stride) {
    const auto name = fitted(matrix.classes[i], most, names.size);
    const double middle = side * (static_cast<double>(i) + 0.5);
    names.anchor = "end";
    svg.text(left - 6, top + middle, name, names);
    if (!turned) names.anchor = "middle";
    svg.text(left + middle, top + whole + (turned ? 6 : 12), name, names, turned);
  }
  svg.text(left + whole / 2, size - kChartPadding, "predicted", kLabel);
  svg.text(kChartPadding + 4, top + whole / 2, "true", kLabel, /*upwards=*/true);
  return std::move(svg).file();
}

}  // namespace ddprun::report
