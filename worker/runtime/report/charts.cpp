#include <ddprun/report/charts.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <ddprun/common/text.h>
#include <ddprun/report/axis.h>
#include <ddprun/report/html_report.h>

namespace ddprun::report {
namespace {

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
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i]) || (chart.log_y && series.y[i] <= 0))
        continue;
      x.add(series.x[i]);
      y.add(series.y[i]);
    }
  }
  const bool empty = x.low > x.high;
  if (empty) x = {0, 1}, y = {chart.log_y ? 0.1 : 0, 1};
  return {make_axis(x.low, x.high, {.integer = chart.integer_x, .margin = 0.02, .most_ticks = most_x_ticks}),
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
