#include <ddprun/image/image_grid.h>

#include <cairo.h>

#include <algorithm>
#include <cmath>

#include <ddprun/common/text.h>
#include <ddprun/image/drawing.h>

namespace ddprun::image {
namespace {

constexpr int kPadding = 14, kLine = 15, kGridTitle = 30, kGap = 10;
constexpr TextStyle kTitleStyle{.size = 16, .bold = true};

/// Units of a picture's longer side in the grid: a whole multiple of a small picture's side.
int side_of(const std::vector<Tile>& tiles) {
  constexpr int kWanted = 112, kMost = 512;
  int longest = 1;
  for (const auto& tile : tiles) longest = std::max({longest, tile.picture.width, tile.picture.height});
  return longest >= kWanted ? std::min(longest, kMost) : longest * (kWanted / longest);
}

/// The picture as RGBA, fitted into a square, each pixel enlarged to a block.
Image enlarged(const Image& picture, int side) {
  const auto rgb = to_rgb(picture);
  const double scale = static_cast<double>(side) / std::max(rgb.width, rgb.height);
  const int width = std::max(1, static_cast<int>(std::lround(scale * rgb.width)));
  const int height = std::max(1, static_cast<int>(std::lround(scale * rgb.height)));
  auto large = make_image(width, height, 4, 255);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      std::copy_n(rgb.pixel(x * rgb.width / width, y * rgb.height / height), 3, large.pixel(x, y));
  return large;
}

void frame(Image& onto, int left, int top, int side) {
  constexpr std::uint8_t kRed[] = {199, 26, 26};
  constexpr int kDeep = 3 * kPixelScale;
  for (int i = -kDeep; i < side + kDeep; ++i) {
    for (int depth = 1; depth <= kDeep; ++depth) {
      std::copy_n(kRed, 3, onto.pixel(left + i, top - depth));
      std::copy_n(kRed, 3, onto.pixel(left + i, top + side - 1 + depth));
      std::copy_n(kRed, 3, onto.pixel(left - depth, top + i));
      std::copy_n(kRed, 3, onto.pixel(left + side - 1 + depth, top + i));
    }
  }
}

struct Layout {
  int columns = 1, rows = 1, side = 1, top = kPadding, caption = kLine;
  int left_of(int tile) const { return kPadding + tile % columns * (side + kGap); }
  int top_of(int tile) const { return top + tile / columns * (side + caption + kGap); }
};

Layout layout_of(const std::vector<Tile>& tiles, const std::string& title, int columns) {
  const int count = static_cast<int>(tiles.size());
  if (columns < 1) columns = static_cast<int>(std::ceil(std::sqrt(count * 1.2)));
  columns = std::min(columns, count);
  std::size_t lines = 1;
  for (const auto& tile : tiles) lines = std::max(lines, split(tile.caption, '\n').size());
  return {columns, (count + columns - 1) / columns, side_of(tiles),
          kPadding + (title.empty() ? 0 : kGridTitle), 7 + kLine * static_cast<int>(lines)};
}

/// Centred under the picture.
void draw_caption(cairo_t* cairo, const Layout& layout, int number, const Tile& tile) {
  double y = layout.top_of(number) + layout.side + kLine / 2.0 + 5;
  for (const auto& line : split(tile.caption, '\n')) {
    TextStyle style{.size = 12, .align = Align::centre, .colour = tile.wrong ? kWrong : kInk};
    if (const double needed = text_width(cairo, line, style); needed > layout.side)
      style.size = std::max(9.0, style.size * layout.side / needed);
    draw_text(cairo, layout.left_of(number) + layout.side / 2.0, y,
              fitted(cairo, line, layout.side + kGap - 2, style), style);
    y += kLine;
  }
}

}  // namespace

Image draw_image_grid(const std::vector<Tile>& tiles, const std::string& title, int columns) {
  if (tiles.empty()) return draw_note("no samples");
  for (const auto& tile : tiles) check_pixels(tile.picture);
  const auto layout = layout_of(tiles, title, columns);
  const int width = layout.left_of(layout.columns - 1) + layout.side + kPadding;
  const int height =
      layout.top_of(static_cast<int>(tiles.size()) - 1) + layout.side + layout.caption + kPadding;
  auto grid = as_drawing(draw_image(width, height, [&](cairo_t* cairo) {
    draw_text(cairo, kPadding, kPadding + 8, fitted(cairo, title, width - 2 * kPadding, kTitleStyle),
              kTitleStyle);
    for (int i = 0; i < static_cast<int>(tiles.size()); ++i)
      draw_caption(cairo, layout, i, tiles[static_cast<std::size_t>(i)]);
  }));
  for (int i = 0; i < static_cast<int>(tiles.size()); ++i) {
    const auto& tile = tiles[static_cast<std::size_t>(i)];
    const int left = kPixelScale * layout.left_of(i), top = kPixelScale * layout.top_of(i);
    const int side = kPixelScale * layout.side;
    const auto picture = enlarged(tile.picture, side);
    paste(picture, grid, left + (side - picture.width) / 2, top + (side - picture.height) / 2);
    if (tile.wrong) frame(grid, left, top, side);
  }
  return grid;
}

}  // namespace ddprun::image
