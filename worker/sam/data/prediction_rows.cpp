#include "worker/sam/data/prediction_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <ddprun/common/text.h>

namespace ddprun::sam {
namespace {

constexpr int kMostRows = 5, kColumns = 4;
constexpr int kMargin = 18, kGap = 18, kTitle = 34;
constexpr int kWidth = 320, kMostHeight = 400;  // of a panel
constexpr int kSmallSide = 200, kSmallTitle = 26;
constexpr int kWholeWidth = 2 * kMargin + kColumns * kWidth + (kColumns - 1) * kGap;

using Rgb = std::array<std::uint8_t, 3>;
constexpr Rgb kWhite = {255, 255, 255}, kRed = {230, 20, 20}, kBlue = {30, 110, 235}, kEdge = {190, 194, 200},
              kBlack = {0, 0, 0}, kGreen = {0, 230, 118}, kOrange = {255, 145, 0};

/// The picture as RGB, stretched in contrast if it is grey.
image::Image for_display(const image::Image& picture) {
  auto rgb = image::to_rgb(picture);
  auto& bytes = rgb.bytes;
  for (std::size_t i = 0; i < bytes.size(); i += 3)
    if (bytes[i] != bytes[i + 1] || bytes[i] != bytes[i + 2]) return rgb;
  const auto [lowest, highest] = std::ranges::minmax(bytes);
  if (lowest == highest) return rgb;
  const int range = highest - lowest;
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>((255 * (byte - lowest) + range / 2) / range);
  return rgb;
}

/// Scales a picture to RGBA: a new pixel is the mean of the pixels it covers, or the one that covers it.
image::Image resized(const image::Image& picture, int width, int height) {
  auto result = image::make_image(width, height, 4, 255);
  const auto begin = [](int i, int from, int to) {
    return static_cast<int>(static_cast<std::int64_t>(i) * from / to);
  };
  for (int y = 0; y < height; ++y) {
    const int top = begin(y, picture.height, height);
    const int bottom = std::max(top + 1, begin(y + 1, picture.height, height));
    for (int x = 0; x < width; ++x) {
      const int left = begin(x, picture.width, width);
      const int right = std::max(left + 1, begin(x + 1, picture.width, width));
      std::array<std::int64_t, 3> sum = {};
      for (int row = top; row < bottom; ++row)
        for (int column = left; column < right; ++column)
          for (std::size_t channel = 0; channel < 3; ++channel)
            sum[channel] += picture.pixel(column, row)[channel];
      const auto count = static_cast<std::int64_t>(bottom - top) * (right - left);
      for (std::size_t channel = 0; channel < 3; ++channel)
        result.pixel(x, y)[channel] = static_cast<std::uint8_t>((sum[channel] + count / 2) / count);
    }
  }
  return result;
}

/// The mask in black and white.
image::Image shown_mask(image::Image mask) {
  image::check_pixels(mask);
  if (mask.channels != 1)
    throw std::invalid_argument(formatted("a mask to draw has one channel, got %d", mask.channels));
  for (auto& byte : mask.bytes) byte = byte != 0 ? 255 : 0;
  return image::to_rgb(mask);
}

/// Mixes this share of a colour into a pixel, which may be transparent.
void blend(std::uint8_t* pixel, Rgb colour, double share) {
  if (pixel[3] == 0) std::ranges::copy(colour, pixel);
  pixel[3] = std::max(pixel[3], static_cast<std::uint8_t>(std::lround(255 * share)));
  for (std::size_t channel = 0; channel < 3; ++channel)
    pixel[channel] =
        static_cast<std::uint8_t>(std::lround(pixel[channel] + share * (colour[channel] - pixel[channel])));
}

constexpr int kScale = image::kPixelScale;

/// Draws the border of a mask of the same size, `reach` pixels wide on both sides.
void draw_contour(image::Image& onto, const image::Image& mask, int reach, Rgb colour) {
  const auto inside = [&](int x, int y) {
    return *mask.pixel(std::clamp(x, 0, mask.width - 1), std::clamp(y, 0, mask.height - 1)) >= 128;
  };
  for (int y = 0; y < onto.height; ++y)
    for (int x = 0; x < onto.width; ++x)
      if (inside(x - reach, y) != inside(x + reach, y) || inside(x, y - reach) != inside(x, y + reach))
        std::copy_n(colour.data(), 3, onto.pixel(x, y));
}

/// The picture with the predicted mask in orange, and the contours of both masks, the true one's in green.
/// Coloured lines lie on black ones, so that they stand out from any picture.
///
/// reach  half of a line's width, in pixels
image::Image overlaid(const PredictionRow& row, image::Image picture, int reach) {
  const auto predicted = resized(shown_mask(row.predicted), picture.width, picture.height);
  const bool with_truth = !row.truth.bytes.empty();
  const auto truth =
      with_truth ? resized(shown_mask(row.truth), picture.width, picture.height) : image::Image();
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x)
      if (*predicted.pixel(x, y) >= 128) blend(picture.pixel(x, y), kOrange, 0.35);
  if (with_truth) draw_contour(picture, truth, 3 * reach, kBlack);
  draw_contour(picture, predicted, 3 * reach, kBlack);
  if (with_truth) draw_contour(picture, truth, reach, kGreen);
  draw_contour(picture, predicted, reach, kOrange);
  return picture;
}

/// Draws an x with smooth edges, centred at x, y.
void draw_cross(image::Image& onto, double x, double y, double arm, double thickness, Rgb colour) {
  const int reach = static_cast<int>(std::ceil(arm + thickness)) + 1;
  const int column = static_cast<int>(std::lround(x)), row = static_cast<int>(std::lround(y));
  for (int at_y = std::max(0, row - reach); at_y <= std::min(onto.height - 1, row + reach); ++at_y)
    for (int at_x = std::max(0, column - reach); at_x <= std::min(onto.width - 1, column + reach); ++at_x) {
      // Along the two diagonals; past a line's end, the distance to the end counts.
      const double along = (at_x - x + at_y - y) / std::sqrt(2.0),
                   across = (at_x - x - at_y + y) / std::sqrt(2.0);
      const auto distance = [arm](double on, double off) {
        return std::hypot(std::max(0.0, std::abs(on) - arm), off);
      };
      const double nearest = std::min(distance(along, across), distance(across, along));
      blend(onto.pixel(at_x, at_y), colour, std::clamp(thickness / 2 + 0.5 - nearest, 0.0, 1.0));
    }
}

/// One picture of a row and its place, in pixels.
struct Panel {
  image::Image picture;
  int left = 0, top = 0;
};

/// Fits the picture into a place that begins at `left` and `top` and is `width` wide, in units.
Panel panel_of(const image::Image& rgb, int left, int top, int place, int most_height) {
  const double scale = std::min(kScale * static_cast<double>(place) / rgb.width,
                                kScale * static_cast<double>(most_height) / rgb.height);
  const int width = std::clamp(static_cast<int>(std::lround(scale * rgb.width)), 1, kScale * place);
  const int height = std::clamp(static_cast<int>(std::lround(scale * rgb.height)), 1, kScale * most_height);
  return {resized(rgb, width, height), kScale * left + (kScale * place - width) / 2, kScale * top};
}

void paste(const Panel& panel, image::Image& onto) {
  const auto& picture = panel.picture;
  for (int y = -kScale; y < picture.height + kScale;
       ++y)  // a frame, so that white pictures have visible edges
    for (int x = -kScale; x < picture.width + kScale; ++x)
      blend(onto.pixel(panel.left + x, panel.top + y), kEdge, 1);
  image::paste(picture, onto, panel.left, panel.top);
}

/// Draws onto the figure, so that points at a picture's edge are not cut off.
///
/// unit  of a line's width: half of what a panel of a row has
void draw_points(image::Image& figure, const Panel& panel, const PredictionRow& row, double arm,
                 double unit = kScale) {
  const double thickness = 2.6 * unit, halo = 2.4 * unit;
  const double scale_x = static_cast<double>(panel.picture.width) / row.picture.width;
  const double scale_y = static_cast<double>(panel.picture.height) / row.picture.height;
  for (const auto& point : row.points) {
    const bool inside =
        point.x > -1 && point.x < row.picture.width && point.y > -1 && point.y < row.picture.height;
    if (!inside) continue;
    const double x = panel.left + (point.x + 0.5) * scale_x - 0.5;
    const double y = panel.top + (point.y + 0.5) * scale_y - 0.5;
    draw_cross(figure, x, y, arm, thickness + halo, kWhite);
    draw_cross(figure, x, y, arm, thickness, point.foreground ? kRed : kBlue);
  }
}

int left_of(int column) { return kMargin + column * (kWidth + kGap); }

/// "Dice 0.8312" after `before`; empty if it is not known.
std::string dice_text(const PredictionRow& row, const char* before = "") {
  return row.dice ? before + formatted("Dice %.4f", *row.dice) : "";
}

}  // namespace

image::Image draw_prediction_rows(const std::vector<PredictionRow>& rows, const std::string& part) {
  if (rows.empty()) return image::draw_image_grid({});
  std::vector<Panel> panels;
  std::vector<int> tops;
  int bottom = kMargin - kGap / 2;
  for (std::size_t i = 0; i < std::min<std::size_t>(rows.size(), kMostRows); ++i) {
    const auto& row = rows[i];
    const int top = bottom + kTitle;
    tops.push_back(top);
    const auto picture = for_display(row.picture);
    const auto add = [&](const image::Image& rgb) {
      const auto column = static_cast<int>(panels.size()) % kColumns;
      panels.push_back(panel_of(rgb, left_of(column), top, kWidth, kMostHeight));
    };
    for (const auto& rgb : {picture, shown_mask(row.truth), shown_mask(row.predicted), picture}) add(rgb);
    panels.back().picture = overlaid(row, std::move(panels.back().picture), kScale);
    for (auto panel = panels.end() - kColumns; panel != panels.end(); ++panel)
      bottom = std::max(bottom, top + panel->picture.height / kScale + kGap / 2);
  }
  auto figure = image::make_image(kScale * kWholeWidth, kScale * (bottom + kMargin - kGap / 2), 4);
  for (std::size_t i = 0; i < tops.size(); ++i) {
    int column = 0;
    for (const auto& title :
         {part + " Image with Points", std::string("Ground Truth Mask"),
          "Predicted Mask" + dice_text(rows[i], ", "), std::string("Truth Green, Prediction Orange")})
      figure.captions.push_back(
          {kScale * left_of(column++), kScale * (tops[i] - kTitle / 2 - 5), kScale * kWidth, title});
  }
  for (const auto& panel : panels) paste(panel, figure);
  for (std::size_t i = 0; i < tops.size(); ++i) {
    draw_points(figure, panels[kColumns * i], rows[i], 7 * kScale);
    draw_points(figure, panels[kColumns * i + 3], rows[i], 2 * kScale);  // hides little of the masks
  }
  return figure;
}

image::Image draw_overlays(const std::vector<PredictionRow>& rows) {
  if (rows.empty()) return image::draw_image_grid({});
  const int count = static_cast<int>(std::min<std::size_t>(rows.size(), kMostRows));
  constexpr int kStep = kSmallSide + kGap;
  auto figure = image::make_image(kScale * (2 * kMargin + count * kStep - kGap),
                                  kScale * (2 * kMargin + kSmallSide + kSmallTitle), 4);
  for (int i = 0; i < count; ++i) {
    const auto& row = rows[static_cast<std::size_t>(i)];
    const int left = kMargin + i * kStep;
    auto panel = panel_of(for_display(row.picture), left, kMargin, kSmallSide, kSmallSide);
    panel.picture = overlaid(row, std::move(panel.picture), 1);
    paste(panel, figure);
    draw_points(figure, panel, row, kScale, 1);
    figure.captions.push_back(
        {kScale * left, kScale * (kMargin + kSmallSide + 6), kScale * kSmallSide, dice_text(row)});
  }
  return figure;
}

image::Image shown_picture(const image::Image& picture, int longest) {
  const double scale = std::min(1.0, static_cast<double>(longest) / std::max(picture.width, picture.height));
  const auto side = [scale](int old) { return std::max(1, static_cast<int>(std::lround(scale * old))); };
  return resized(for_display(picture), side(picture.width), side(picture.height));
}

image::Image draw_prediction(const PredictionRow& row) {
  constexpr int kSmall = 640;
  const auto picture = for_display(row.picture);
  const int longest = std::max(picture.width, picture.height), times = std::max(1, kSmall / longest);
  const int reach = std::max(1, times * longest / kSmall);
  Panel whole{resized(picture, times * picture.width, times * picture.height)};
  whole.picture = overlaid(row, std::move(whole.picture), reach);
  auto figure = whole.picture;
  draw_points(figure, whole, row, 3 * reach, reach);
  return figure;
}

}  // namespace ddprun::sam
