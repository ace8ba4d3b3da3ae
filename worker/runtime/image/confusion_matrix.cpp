#include <ddprun/image/confusion_matrix.h>

#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include <ddprun/image/drawing.h>

namespace ddprun::image {
namespace {

constexpr std::size_t kMostClasses = 1000;
constexpr TextStyle kMatrixTitle{.size = 16, .bold = true};
constexpr TextStyle kMatrixLabel{.size = 13, .align = Align::centre, .colour = kQuietInk};

void check(const ConfusionMatrix& matrix, int size) {
  const auto classes = matrix.classes.size();
  if (size < 200) throw std::invalid_argument("a chart has at least 200 pixels, got " + std::to_string(size));
  if (classes < 1 || classes > kMostClasses)
    throw std::invalid_argument("from 1 to 1000 classes can be drawn, got " + std::to_string(classes));
  if (matrix.counts.size() != classes * classes)
    throw std::invalid_argument(std::to_string(classes) + " classes have " +
                                std::to_string(classes * classes) + " counts, got " +
                                std::to_string(matrix.counts.size()));
  if (std::ranges::any_of(matrix.counts, [](auto count) { return count < 0; }))
    throw std::invalid_argument("a count is below zero");
}

std::string accuracy_text(const ConfusionMatrix& matrix) {
  double correct = 0, all = 0;
  for (std::size_t i = 0; i < matrix.counts.size(); ++i) {
    all += static_cast<double>(matrix.counts[i]);
    if (i % (matrix.classes.size() + 1) == 0) correct += static_cast<double>(matrix.counts[i]);
  }
  if (all == 0) return "no data";
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %% of %.0f right", 100 * correct / all, all);
  return text;
}

/// Draws one matrix: title, true classes on the left, predicted ones below.
class MatrixPainter {
 public:
  MatrixPainter(cairo_t* cairo, const ConfusionMatrix& matrix, const std::string& title, double size)
      : cairo_(cairo), matrix_(matrix), title_(title), classes_(matrix.classes.size()), size_(size) {}

  void paint() {
    const double most = size_ * 0.2;  // for names
    names_.size = std::clamp(size_ * 0.55 / static_cast<double>(classes_), 7.0, 13.0);
    double widest = 0;
    for (const auto& name : matrix_.classes)
      widest = std::max(widest, std::min(most, text_width(cairo_, name, names_)));
    left_ = kMargin + 20 + widest + 6;
    top_ = kMargin + 36;
    const double below = std::max(24.0, turned_names() ? widest + 10 : 0) + 24;
    cell_ = std::min((size_ - left_ - kMargin), (size_ - top_ - below)) / static_cast<double>(classes_);
    draw_text(cairo_, kMargin, kMargin + 8, title_ + ": " + accuracy_text(matrix_), kMatrixTitle);
    for (std::size_t row = 0; row < classes_; ++row) paint_row(row);
    set_colour(cairo_, kQuietInk);
    cairo_set_line_width(cairo_, 1);
    cairo_rectangle(cairo_, left_, top_, side(), side());
    cairo_stroke(cairo_);
    paint_names(most);
  }

 private:
  static constexpr double kMargin = 14;

  double side() const { return cell_ * static_cast<double>(classes_); }
  double at(std::size_t index) const { return cell_ * static_cast<double>(index); }
  /// Whether the names under the columns do not fit side by side.
  bool turned_names() {
    const double room = size_ * 0.7 / static_cast<double>(classes_);
    return std::ranges::any_of(matrix_.classes,
                               [&](const auto& name) { return text_width(cairo_, name, names_) > room; });
  }

  void paint_row(std::size_t row) {
    const auto* counts = matrix_.counts.data() + row * classes_;
    double sum = 0;
    for (std::size_t column = 0; column < classes_; ++column) sum += static_cast<double>(counts[column]);
    for (std::size_t column = 0; column < classes_; ++column) {
      if (counts[column] == 0) continue;
      const double share = static_cast<double>(counts[column]) / sum;
      // The square root makes one mistake in a hundred visible.
      const Colour base = row == column ? Colour{0.03, 0.32, 0.58} : Colour{0.78, 0.25, 0.05};
      const double strength = 0.06 + 0.94 * std::sqrt(share);
      set_colour(cairo_, {1 - strength * (1 - base.red), 1 - strength * (1 - base.green),
                          1 - strength * (1 - base.blue)});
      cairo_rectangle(cairo_, left_ + at(column), top_ + at(row), cell_, cell_);
      cairo_fill(cairo_);
      paint_count(row, column, std::to_string(counts[column]), strength > 0.55);
    }
  }

  void paint_count(std::size_t row, std::size_t column, const std::string& text, bool on_dark) {
    TextStyle style{.size = std::min(13.0, cell_ * 0.36), .align = Align::centre};
    if (on_dark) style.colour = {1, 1, 1};
    if (const double width = text_width(cairo_, text, style); width > cell_ - 4)
      style.size *= (cell_ - 4) / width;
    if (style.size >= 6)
      draw_text(cairo_, left_ + at(column) + cell_ / 2, top_ + at(row) + cell_ / 2, text, style);
  }

  void paint_names(double most) {
    const bool turned = turned_names();
    const auto stride = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(9 / cell_)));
    for (std::size_t i = 0; i < classes_; i += stride) {
      const auto name = fitted(cairo_, matrix_.classes[i], most, names_);
      auto style = names_;
      style.align = Align::right;
      draw_text(cairo_, left_ - 6, top_ + at(i) + cell_ / 2, name, style);
      style.align = turned ? Align::right : Align::centre;
      (turned ? draw_text_upwards : draw_text)(cairo_, left_ + at(i) + cell_ / 2,
                                               top_ + side() + (turned ? 6 : 12), name, style);
    }
    draw_text(cairo_, left_ + side() / 2, size_ - kMargin, "predicted", kMatrixLabel);
    draw_text_upwards(cairo_, kMargin + 4, top_ + side() / 2, "true", kMatrixLabel);
  }

  cairo_t* cairo_;
  const ConfusionMatrix& matrix_;
  const std::string& title_;
  std::size_t classes_;
  double size_;
  double left_ = 0, top_ = 0, cell_ = 0;
  TextStyle names_{.size = 13, .colour = kQuietInk};
};

}  // namespace

Image draw_confusion_matrix(const ConfusionMatrix& matrix, const std::string& title, int size) {
  check(matrix, size);
  return as_drawing(
      draw_image(size, size, [&](cairo_t* cairo) { MatrixPainter(cairo, matrix, title, size).paint(); }));
}

}  // namespace ddprun::image
