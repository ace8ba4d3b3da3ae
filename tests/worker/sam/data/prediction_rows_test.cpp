#include "worker/sam/data/prediction_rows.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::sam {
using namespace image;
namespace {

/// Whether the pixel is nearly of this colour.
bool is_near(const std::uint8_t* pixel, int red, int green, int blue) {
  return std::abs(pixel[0] - red) < 8 && std::abs(pixel[1] - green) < 8 && std::abs(pixel[2] - blue) < 8;
}

int count(const Image& figure, int red, int green, int blue) {
  int found = 0;
  for (int y = 0; y < figure.height; ++y)
    for (int x = 0; x < figure.width; ++x) found += is_near(figure.pixel(x, y), red, green, blue) ? 1 : 0;
  return found;
}

PredictionRow row_of(int width, int height, std::vector<PointMark> points = {}) {
  return {make_image(width, height, 3, 90), std::move(points), make_image(width, height, 1, 0),
          make_image(width, height, 1, 7)};
}

TEST_CASE("a row is the picture, the true mask, the predicted one and all of them, side by side",
          "[prediction_rows]") {
  const auto figure = draw_prediction_rows({row_of(64, 64)});
  CHECK(figure.channels == 4);
  const int middle = figure.height - 100;
  CHECK(is_near(figure.pixel(figure.width / 8, middle), 90, 90, 90));
  CHECK(is_near(figure.pixel(figure.width * 3 / 8, middle), 0, 0, 0));
  CHECK(is_near(figure.pixel(figure.width * 5 / 8, middle), 255, 255, 255));
  CHECK(is_near(figure.pixel(figure.width * 7 / 8, middle), 148, 109, 59));  // tinted
  CHECK(figure.pixel(figure.width / 8, middle)[3] == 255);                   // as it is in dark mode too
  CHECK(figure.pixel(1, 1)[3] == 0);
  CHECK(count(figure, 230, 20, 20) == 0);
}

TEST_CASE("a grey picture is drawn from black to white, a coloured one as it is", "[prediction_rows]") {
  auto row = row_of(64, 64);
  const auto shown = [&] {
    const auto figure = draw_prediction_rows({row});
    const auto* pixel = figure.pixel(figure.width / 8, figure.height - 100);
    return std::vector<int>{pixel[0], pixel[1], pixel[2]};
  };
  row.picture = make_image(64, 64, 3, 10);
  std::fill_n(row.picture.pixel(0, 0), 3, 8);
  std::fill_n(row.picture.pixel(1, 0), 3, 18);
  CHECK(shown() == std::vector<int>{51, 51, 51});  // as imshow: 255 * (10 - 8) / (18 - 8)
  row.picture.pixel(1, 0)[2] = 19;
  CHECK(shown() == std::vector<int>{10, 10, 10});
}

TEST_CASE("the contours of both masks stand out from any picture", "[prediction_rows]") {
  for (const int grey : {0, 128, 255}) {
    INFO(grey);
    auto row = row_of(64, 64);
    row.picture = make_image(64, 64, 3, static_cast<std::uint8_t>(grey));
    row.predicted = make_image(64, 64, 1, 0);
    for (int y = 20; y < 40; ++y)
      for (int x = 20; x < 40; ++x) *row.truth.pixel(x - 10, y) = *row.predicted.pixel(x + 14, y) = 1;
    const auto figure = draw_prediction_rows({row});
    // A square of 20 has a contour of 4 * 200 pixels, four wide.
    CHECK(count(figure, 0, 230, 118) > 2800);
    CHECK(count(figure, 255, 145, 0) > 2800);
    int lines = 0, edged = 0;  // pixels of contours; of these with black beside them
    for (int y = 0; y < figure.height; ++y)
      for (int x = figure.width * 3 / 4 + 6; x < figure.width - 6; ++x) {
        if (!is_near(figure.pixel(x, y), 0, 230, 118)) continue;
        ++lines;
        edged += is_near(figure.pixel(x - 4, y), 0, 0, 0) || is_near(figure.pixel(x, y - 4), 0, 0, 0) ||
                 is_near(figure.pixel(x + 4, y), 0, 0, 0) || is_near(figure.pixel(x, y + 4), 0, 0, 0);
      }
    CHECK(lines > 2800);
    CHECK(edged == lines);
  }
}

TEST_CASE("points are crosses at their places, red, and blue for the background", "[prediction_rows]") {
  const auto plain = draw_prediction_rows({row_of(64, 32)});
  const auto figure =
      draw_prediction_rows({row_of(64, 32, {{.x = 16, .y = 8}, {.x = 48, .y = 24, .foreground = false}})});
  // The panel is 640 pixels wide, 10 for each of the picture's, and begins where grey does.
  int left = figure.width, top = figure.height;
  for (int y = 0; y < plain.height; ++y)
    for (int x = 0; x < plain.width / 4; ++x)
      if (is_near(plain.pixel(x, y), 90, 90, 90) && is_near(plain.pixel(x + 1, y + 1), 90, 90, 90) &&
          is_near(plain.pixel(x + 9, y + 9), 90, 90, 90))
        left = std::min(left, x), top = std::min(top, y);
  CHECK(is_near(figure.pixel(left + 16 * 10 + 5, top + 8 * 10 + 5), 230, 20, 20));
  CHECK(is_near(figure.pixel(left + 48 * 10 + 5, top + 24 * 10 + 5), 30, 110, 235));
  CHECK(count(figure, 230, 20, 20) > 30);
  CHECK(count(figure, 30, 110, 235) > 30);
}

TEST_CASE("a point at the very corner is seen, one outside is not", "[prediction_rows]") {
  const auto corner = draw_prediction_rows({row_of(200, 300, {{.x = 199, .y = 299}})});
  CHECK(count(corner, 230, 20, 20) > 30);
  const auto outside = draw_prediction_rows({row_of(200, 300, {{.x = -10, .y = -10}, {.x = 1e300, .y = 5}})});
  CHECK(count(outside, 230, 20, 20) == 0);
}

TEST_CASE("no more than five rows are drawn", "[prediction_rows]") {
  const std::vector<PredictionRow> rows(9, row_of(20, 20));
  const auto five = draw_prediction_rows({rows.begin(), rows.begin() + 5});
  CHECK(draw_prediction_rows(rows).bytes == five.bytes);
  CHECK(draw_prediction_rows({rows.begin(), rows.begin() + 4}).height < five.height);
}

TEST_CASE("titles name the part", "[prediction_rows]") {
  const auto training = draw_prediction_rows({row_of(20, 20)});
  REQUIRE(training.captions.size() == 4);
  CHECK(training.captions[0].text == "Training Image with Points");
  CHECK(draw_prediction_rows({row_of(20, 20)}, "Validation").captions[0].text ==
        "Validation Image with Points");
  for (const auto& caption : training.captions) {
    CHECK(caption.x + caption.width <= training.width);
    CHECK(training.pixel(caption.x + caption.width / 2, caption.y + 20)[3] == 0);
  }
}

TEST_CASE("a known Dice is in the row's caption", "[prediction_rows]") {
  auto row = row_of(20, 20);
  row.dice = 0.83124;
  const auto captions = draw_prediction_rows({row, row_of(20, 20)}).captions;
  REQUIRE(captions.size() == 8);
  CHECK(captions[2].text == "Predicted Mask, Dice 0.8312");
  CHECK(captions[6].text == "Predicted Mask");
}

TEST_CASE("overlays are five pictures with the masks side by side, with the Dice below",
          "[prediction_rows]") {
  auto row = row_of(64, 64, {{.x = 32, .y = 32}});
  row.truth = make_image(64, 64, 1, 0);
  for (int y = 20; y < 40; ++y)
    for (int x = 20; x < 40; ++x) *row.truth.pixel(x, y) = 1;
  row.dice = 0.25;
  const auto figure = draw_overlays(std::vector<PredictionRow>(7, row));
  REQUIRE(figure.captions.size() == 5);
  CHECK(figure.captions[4].text == "Dice 0.2500");
  CHECK(figure.captions[4].x + figure.captions[4].width <= figure.width);
  CHECK(figure.width > 4 * figure.height / 2);
  CHECK(count(figure, 0, 230, 118) > 5 * 4 * 100);
  CHECK(count(figure, 230, 20, 20) > 5);
  CHECK(draw_overlays({}).captions.at(0).text == "no samples");
}

TEST_CASE("a prediction is the picture with the mask's outline and the points", "[prediction_rows]") {
  auto row = row_of(64, 32, {{.x = 30, .y = 16}, {.x = 5, .y = 5, .foreground = false}});
  row.truth = {};
  row.predicted = make_image(64, 32, 1, 0);
  for (int y = 10; y < 24; ++y)
    for (int x = 20; x < 40; ++x) *row.predicted.pixel(x, y) = 255;
  const auto figure = draw_prediction(row);
  CHECK((figure.width == 640 && figure.height == 320));
  CHECK(is_near(figure.pixel(600, 300), 90, 90, 90));
  CHECK(is_near(figure.pixel(250, 120), 148, 109, 59));
  CHECK(count(figure, 255, 145, 0) > 600);
  CHECK(is_near(figure.pixel(305, 165), 230, 20, 20));
  CHECK(is_near(figure.pixel(55, 55), 30, 110, 235));
  row.picture = make_image(2000, 1000, 3, 90);
  CHECK(draw_prediction(row).width == 2000);
}

TEST_CASE("pictures of any sizes and channels are drawn", "[prediction_rows]") {
  PredictionRow mixed = row_of(3, 4000);
  mixed.picture = make_image(5000, 2, 4, 128);
  mixed.truth = make_image(1, 1, 1, 255);
  const auto figure = draw_prediction_rows({mixed, row_of(1, 1), row_of(700, 500)}, std::string(1000, 'w'));
  CHECK(figure.width == draw_prediction_rows({row_of(9, 9)}).width);
  CHECK(draw_prediction_rows({}).captions.at(0).text == "no samples");
}

TEST_CASE("what cannot be drawn is refused", "[prediction_rows]") {
  auto coloured = row_of(4, 4);
  coloured.truth = make_image(4, 4, 3);
  CHECK_THROWS_WITH(draw_prediction_rows({coloured}), "a mask to draw has one channel, got 3");
  auto empty = row_of(4, 4);
  empty.picture = make_image(0, 4, 3);
  CHECK_THROWS_AS(draw_prediction_rows({empty}), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::sam
