#include <ddprun/image/line_chart.h>

#include <cairo.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <ddprun/image/axis.h>
#include <ddprun/image/drawing.h>

namespace ddprun::image {
namespace {

constexpr int kSmallestWidth = 200, kSmallestHeight = 150;
constexpr double kChartPadding = 14, kLineHeight = 20;
constexpr std::size_t kMostMarkers = 60;  // with more points, only the line is drawn
constexpr TextStyle kTitle{.size = 16, .bold = true};
constexpr TextStyle kLabel{.size = 13, .align = Align::centre, .colour = kQuietInk};
constexpr TextStyle kXTick{.size = 12, .align = Align::centre, .colour = kQuietInk};
constexpr TextStyle kYTick{.size = 12, .align = Align::right, .colour = kQuietInk};
constexpr TextStyle kLegend{.size = 13};

void check(const LineChart& chart, int width, int height) {
  if (width < kSmallestWidth || height < kSmallestHeight)
    throw std::invalid_argument("a chart has at least 200 x 150 pixels, got " + std::to_string(width) +
                                " x " + std::to_string(height));
  for (const auto& series : chart.series)
    if (series.x.size() != series.y.size())
      throw std::invalid_argument("the curve '" + series.name + "' has " + std::to_string(series.x.size()) +
                                  " x and " + std::to_string(series.y.size()) + " y");
}

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

struct Plot {
  double left = 0, top = 0, right = 0, bottom = 0;
  double x(double place) const { return left + place * (right - left); }
  double y(double place) const { return bottom - place * (bottom - top); }
};

/// Draws one chart; top to bottom: title, legend, plot, labels.
class ChartPainter {
 public:
  ChartPainter(cairo_t* cairo, const LineChart& chart, int width, int height)
      : cairo_(cairo),
        chart_(chart),
        width_(width),
        height_(height),
        axes_(axes_of(chart, std::max(2, width / 90), std::max(2, height / 50))) {}

  void paint() {
    plot_.top = kChartPadding;
    paint_title();
    paint_legend();
    plot_.top += 10;
    plot_.bottom = height_ - kChartPadding - kLineHeight - (chart_.x_label.empty() ? 0 : kLineHeight);
    plot_.left = kChartPadding + (chart_.y_label.empty() ? 0 : kLineHeight) + widest_y_tick() + 8;
    plot_.right = width_ - kChartPadding - 6;
    paint_grid();
    paint_labels();
    if (axes_.empty)
      return draw_text(cairo_, plot_.x(0.5), plot_.y(0.5), "no data",
                       {.size = 16, .align = Align::centre, .colour = kQuietInk});
    cairo_save(cairo_);
    cairo_rectangle(cairo_, plot_.left, plot_.top - 3, plot_.right - plot_.left,
                    plot_.bottom - plot_.top + 6);
    cairo_clip(cairo_);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) paint_series(i);
    cairo_restore(cairo_);
  }

 private:
  void paint_title() {
    if (chart_.title.empty()) return;
    draw_text(cairo_, kChartPadding, plot_.top + kLineHeight / 2,
              fitted(cairo_, chart_.title, width_ - 2 * kChartPadding, kTitle), kTitle);
    plot_.top += kLineHeight + 6;
  }

  /// Shows as many names as fit into a third of the height.
  void paint_legend() {
    constexpr double kSample = 22, kGap = 18;
    double x = kChartPadding;
    const double lowest = plot_.top + height_ / 3.0 - 2 * kLineHeight;
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      const auto name =
          fitted(cairo_, chart_.series[i].name, width_ - 2 * kChartPadding - kSample - 6, kLegend);
      const double needed = kSample + 6 + text_width(cairo_, name, kLegend);
      if (x > kChartPadding && x + needed > width_ - kChartPadding) {
        x = kChartPadding;
        plot_.top += kLineHeight;
        if (plot_.top > lowest) {
          draw_text(cairo_, x, plot_.top + kLineHeight / 2,
                    "and " + std::to_string(chart_.series.size() - i) + " more", kLegend);
          break;
        }
      }
      set_pen(i);
      cairo_move_to(cairo_, x, plot_.top + kLineHeight / 2);
      cairo_rel_line_to(cairo_, kSample, 0);
      cairo_stroke(cairo_);
      draw_text(cairo_, x + kSample + 6, plot_.top + kLineHeight / 2, name, kLegend);
      x += needed + kGap;
    }
    if (!chart_.series.empty()) plot_.top += kLineHeight;
  }

  double widest_y_tick() const {
    double widest = 0;
    for (const auto& tick : axes_.y.ticks) widest = std::max(widest, text_width(cairo_, tick.label, kYTick));
    return widest;
  }

  /// Draws on whole pixels, which keeps lines sharp.
  void line(double x0, double y0, double x1, double y1, Colour colour) {
    set_colour(cairo_, colour);
    cairo_set_dash(cairo_, nullptr, 0, 0);
    cairo_set_line_width(cairo_, 1);
    cairo_move_to(cairo_, std::floor(x0) + 0.5, std::floor(y0) + 0.5);
    cairo_line_to(cairo_, std::floor(x1) + 0.5, std::floor(y1) + 0.5);
    cairo_stroke(cairo_);
  }

  void paint_grid() {
    for (const auto& tick : axes_.y.ticks) {
      const double y = plot_.y(tick.place);
      line(plot_.left, y, plot_.right, y, kGridLine);
      draw_text(cairo_, plot_.left - 8, y, tick.label, kYTick);
    }
    double free_from = 0;  // where the next label may start
    for (const auto& tick : axes_.x.ticks) {
      const double x = plot_.x(tick.place), half = text_width(cairo_, tick.label, kXTick) / 2;
      line(x, plot_.top, x, plot_.bottom, kGridLine);
      if (x - half < free_from) continue;
      draw_text(cairo_, std::min(x, width_ - half - 2), plot_.bottom + kLineHeight / 2 + 2, tick.label,
                kXTick);
      free_from = x + half + 8;
    }
    line(plot_.left, plot_.bottom, plot_.right, plot_.bottom, kQuietInk);
    line(plot_.left, plot_.top, plot_.left, plot_.bottom, kQuietInk);
  }

  void paint_labels() {
    draw_text(cairo_, plot_.x(0.5), height_ - kChartPadding - kLineHeight / 2 + 4, chart_.x_label, kLabel);
    draw_text_upwards(cairo_, kChartPadding + 4, plot_.y(0.5), chart_.y_label, kLabel);
  }

  void set_pen(std::size_t series) {
    constexpr std::array<double, 2> kDashes = {6, 4};
    set_colour(cairo_, colour_of(series));
    cairo_set_line_width(cairo_, 1.8);
    cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    cairo_set_dash(cairo_, kDashes.data(), series / 7 % 2 == 1 ? 2 : 0, 0);  // once the colours repeat
  }

  void paint_series(std::size_t index) {
    const auto& series = chart_.series[index];
    const auto strokes = strokes_of(series.x, series.y, axes_.x, axes_.y, {plot_.left, plot_.bottom},
                                    plot_.right - plot_.left, plot_.bottom - plot_.top);
    set_pen(index);
    std::size_t points = 0;
    for (const auto& stroke : strokes) {
      for (const auto& point : stroke) cairo_line_to(cairo_, point.x, point.y);
      cairo_stroke(cairo_);
      points += stroke.size();
    }
    for (const auto& stroke : strokes) {
      if (points > kMostMarkers && stroke.size() > 1) continue;  // a single point has no line
      for (const auto& point : stroke) {
        cairo_new_sub_path(cairo_);
        cairo_arc(cairo_, point.x, point.y, 2.6, 0, 7);
        cairo_fill(cairo_);
      }
    }
  }

  cairo_t* cairo_;
  const LineChart& chart_;
  double width_, height_;
  Axes axes_;
  Plot plot_;
};

Draw painting(const LineChart& chart, int width, int height) {
  check(chart, width, height);
  return [=, &chart](cairo_t* cairo) { ChartPainter(cairo, chart, width, height).paint(); };
}

}  // namespace

Image draw_line_chart(const LineChart& chart, int width, int height) {
  return draw_image(width, height, painting(chart, width, height));
}

std::string line_chart_svg(const LineChart& chart, int width, int height) {
  return draw_svg(width, height, painting(chart, width, height));
}

}  // namespace ddprun::image
