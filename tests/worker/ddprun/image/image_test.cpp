#include <ddprun/image/image.h>

#include <array>
#include <stdexcept>

#include "tests/support/catch.h"

namespace ddprun::image {
namespace {

TEST_CASE("a grid shows every pixel of its pictures, enlarged", "[image_grid]") {
  auto picture = make_image(28, 28, 3, 0);
  std::copy_n(std::array<std::uint8_t, 3>{10, 200, 30}.data(), 3, picture.pixel(27, 27));
  const auto grid =
      draw_image_grid({{picture, "pred 3 / true 3"}, {picture, "pred 1 / true 7", true}}, "", 2);
  int green = 0, red = 0;
  for (int y = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x) {
      const auto* pixel = grid.pixel(x, y);
      green += pixel[0] == 10 && pixel[1] == 200 && pixel[2] == 30;
      red += pixel[0] == 199 && pixel[1] == 26 && pixel[2] == 26;
    }
  }
  CHECK(green == 2 * 4 * 4 * kPixelScale * kPixelScale);  // 112 / 28 units a side
  CHECK(red > 4 * 112 * 2);                               // the frame of the wrong one
}

TEST_CASE("a grid's captions are below their pictures, on a transparent ground", "[image_grid]") {
  const auto grid = draw_image_grid(
      {{make_image(28, 28, 1), "pred 3 / true 3"}, {make_image(28, 28, 1), "no", true}}, "samples");
  CHECK(grid.title == "samples");
  REQUIRE(grid.captions.size() == 2);
  const auto& [x, y, width, text, wrong] = grid.captions[1];
  CHECK(text == "no");
  CHECK((wrong && !grid.captions[0].wrong));
  CHECK(grid.captions[0].x + grid.captions[0].width <= x);
  CHECK(x + width <= grid.width);
  CHECK(y + 15 * kPixelScale <= grid.height);
  CHECK(grid.pixel(x + width / 2, y)[3] == 0);
  CHECK(grid.pixel(x + width / 2, y - 10 * kPixelScale)[3] == 255);
}

TEST_CASE("a caption may have several lines, for which every row has room", "[image_grid]") {
  const auto picture = make_image(28, 28, 1);
  const auto one = draw_image_grid({{picture, "a"}, {picture, "b"}}, "", 1);
  const auto two = draw_image_grid({{picture, "pred automobile\ntrue airplane"}, {picture, "b"}}, "", 1);
  CHECK(two.height == one.height + 2 * 15 * kPixelScale);
  CHECK(two.width == one.width);
}

TEST_CASE("grids of any number of tiles and any pictures are drawn", "[image_grid]") {
  CHECK(draw_image_grid({}).captions.at(0).text == "no samples");
  std::vector<Tile> tiles;
  for (int i = 0; i < 37; ++i)
    tiles.push_back({make_image(1 + i, 1 + 20 * i % 50, i % 3 == 0 ? 1 : 3 + i % 2), "x"});
  const auto grid = draw_image_grid(tiles, "samples");
  CHECK(grid.width > grid.height / 2);
  CHECK(grid.width < grid.height * 2);
  CHECK_NOTHROW(draw_image_grid({{make_image(2000, 10, 1), std::string(5000, 'w')}}));
  CHECK_THROWS_AS(draw_image_grid({{make_image(3, 3, 2), ""}}), std::invalid_argument);
}

TEST_CASE("what is transparent shows white", "[image]") {
  const Image image{2, 1, 4, {10, 20, 30, 0, 10, 20, 30, 255}};
  CHECK(to_rgb(image).bytes == std::vector<std::uint8_t>{255, 255, 255, 10, 20, 30});
}

}  // namespace
}  // namespace ddprun::image
