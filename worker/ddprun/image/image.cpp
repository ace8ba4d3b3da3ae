#include <ddprun/image/image.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include <ddprun/common/text.h>

namespace ddprun::image {
namespace {

constexpr int kPadding = 14, kLine = 15, kGap = 10;  // units

/// Units of a picture's longer side in the grid: a whole multiple of a small picture's side.
int side_of(const std::vector<Tile>& tiles) {
  constexpr int kWanted = 112, kMost = 512;
  int longest = 1;
  for (const auto& tile : tiles) longest = std::max({longest, tile.picture.width, tile.picture.height});
  return longest >= kWanted ? std::min(longest, kMost) : longest * (kWanted / longest);
}

/// Pastes the picture, fitted into a square, each pixel enlarged to a block.
void paste_enlarged(const Image& picture, Image& onto, int left, int top, int side) {
  const auto rgb = to_rgb(picture);
  const double scale = static_cast<double>(side) / std::max(rgb.width, rgb.height);
  const int width = std::max(1, static_cast<int>(std::lround(scale * rgb.width)));
  const int height = std::max(1, static_cast<int>(std::lround(scale * rgb.height)));
  auto large = make_image(width, height, 4, 255);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      std::copy_n(rgb.pixel(x * rgb.width / width, y * rgb.height / height), 3, large.pixel(x, y));
  paste(large, onto, left + (side - width) / 2, top + (side - height) / 2);
}

void paint_frame(Image& onto, int left, int top, int side) {
  constexpr std::uint8_t kRed[] = {199, 26, 26, 255};
  constexpr int kDeep = 3 * kPixelScale;
  for (int i = -kDeep; i < side + kDeep; ++i)
    for (int depth = 1; depth <= kDeep; ++depth)
      for (auto* pixel : {onto.pixel(left + i, top - depth), onto.pixel(left + i, top + side - 1 + depth),
                          onto.pixel(left - depth, top + i), onto.pixel(left + side - 1 + depth, top + i)})
        std::copy_n(kRed, 4, pixel);
}

}  // namespace

Image make_image(int width, int height, int channels, std::uint8_t value) {
  Image image{width, height, channels, {}};
  image.bytes.assign(
      static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(channels),
      value);
  return image;
}

void check_pixels(const Image& image) {
  const auto text = formatted("%d x %d pixels with %d channels", image.width, image.height, image.channels);
  if (image.channels != 1 && image.channels != 3 && image.channels != 4)
    throw std::invalid_argument("a picture has 1, 3 or 4 channels, got " + text);
  if (image.width < 1 || image.height < 1)
    throw std::invalid_argument("a picture has at least one pixel, got " + text);
  const auto size = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) *
                    static_cast<std::size_t>(image.channels);
  if (image.bytes.size() != size)
    throw std::invalid_argument(text + formatted(" are %zu bytes, got %zu", size, image.bytes.size()));
}

void paste(const Image& picture, Image& onto, int left, int top) {
  for (int y = 0; y < picture.height; ++y)
    std::copy_n(picture.pixel(0, y), picture.channels * picture.width, onto.pixel(left, top + y));
}

Image to_rgb(const Image& image) {
  check_pixels(image);
  if (image.channels == 3) return image;
  auto rgb = make_image(image.width, image.height, 3);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const auto* from = image.pixel(x, y);
      auto* to = rgb.pixel(x, y);
      const int alpha = image.channels == 4 ? from[3] : 255;
      for (int channel = 0; channel < 3; ++channel) {
        const int value = from[image.channels == 4 ? channel : 0];
        to[channel] = static_cast<std::uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
      }
    }
  }
  return rgb;
}

namespace {

/// A letter of 5 x 7 pixels: a byte for each column, the lowest bit on top.
struct Glyph {
  char letter;
  std::uint8_t columns[5];
};
constexpr Glyph kGlyphs[] = {{'0', {0x3E, 0x51, 0x49, 0x45, 0x3E}}, {'1', {0x00, 0x42, 0x7F, 0x40, 0x00}},
                             {'2', {0x42, 0x61, 0x51, 0x49, 0x46}}, {'3', {0x21, 0x41, 0x45, 0x4B, 0x31}},
                             {'4', {0x18, 0x14, 0x12, 0x7F, 0x10}}, {'5', {0x27, 0x45, 0x45, 0x45, 0x39}},
                             {'6', {0x3C, 0x4A, 0x49, 0x49, 0x30}}, {'7', {0x01, 0x71, 0x09, 0x05, 0x03}},
                             {'8', {0x36, 0x49, 0x49, 0x49, 0x36}}, {'9', {0x06, 0x49, 0x49, 0x29, 0x1E}},
                             {'A', {0x7E, 0x11, 0x11, 0x11, 0x7E}}, {'B', {0x7F, 0x49, 0x49, 0x49, 0x36}},
                             {'C', {0x3E, 0x41, 0x41, 0x41, 0x22}}, {'D', {0x7F, 0x41, 0x41, 0x22, 0x1C}},
                             {'E', {0x7F, 0x49, 0x49, 0x49, 0x41}}, {'F', {0x7F, 0x09, 0x09, 0x01, 0x01}},
                             {'G', {0x3E, 0x41, 0x41, 0x51, 0x32}}, {'H', {0x7F, 0x08, 0x08, 0x08, 0x7F}},
                             {'I', {0x00, 0x41, 0x7F, 0x41, 0x00}}, {'J', {0x20, 0x40, 0x41, 0x3F, 0x01}},
                             {'K', {0x7F, 0x08, 0x14, 0x22, 0x41}}, {'L', {0x7F, 0x40, 0x40, 0x40, 0x40}},
                             {'M', {0x7F, 0x02, 0x04, 0x02, 0x7F}}, {'N', {0x7F, 0x04, 0x08, 0x10, 0x7F}},
                             {'O', {0x3E, 0x41, 0x41, 0x41, 0x3E}}, {'P', {0x7F, 0x09, 0x09, 0x09, 0x06}},
                             {'Q', {0x3E, 0x41, 0x51, 0x21, 0x5E}}, {'R', {0x7F, 0x09, 0x19, 0x29, 0x46}},
                             {'S', {0x46, 0x49, 0x49, 0x49, 0x31}}, {'T', {0x01, 0x01, 0x7F, 0x01, 0x01}},
                             {'U', {0x3F, 0x40, 0x40, 0x40, 0x3F}}, {'V', {0x1F, 0x20, 0x40, 0x20, 0x1F}},
                             {'W', {0x7F, 0x20, 0x18, 0x20, 0x7F}}, {'X', {0x63, 0x14, 0x08, 0x14, 0x63}},
                             {'Y', {0x03, 0x04, 0x78, 0x04, 0x03}}, {'Z', {0x61, 0x51, 0x49, 0x45, 0x43}},
                             {'.', {0x00, 0x60, 0x60, 0x00, 0x00}}, {'-', {0x08, 0x08, 0x08, 0x08, 0x08}},
                             {'%', {0x23, 0x13, 0x08, 0x64, 0x62}}};

void fill(Image& onto, int left, int top, int side, std::uint8_t value) {
  for (int y = top; y < top + side; ++y) std::fill_n(onto.pixel(left, y), side * onto.channels, value);
}

}  // namespace

Image with_label(const Image& picture, const std::string& text) {
  constexpr int kSmall = 224, kAdvance = 6, kHeight = 7;
  const auto rgb = to_rgb(picture);
  const int scale = std::max(1, kSmall / std::max(rgb.width, rgb.height));
  const int width = rgb.width * scale, height = rgb.height * scale;
  const int dot = std::max(2, width / kSmall * 2), margin = 4 * dot;
  const int text_width = static_cast<int>(text.size()) * kAdvance * dot + 2 * margin;
  auto labelled = make_image(std::max(width, text_width), height + kHeight * dot + 2 * margin, 3, 255);
  const int left = (labelled.width - width) / 2;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      std::copy_n(rgb.pixel(x / scale, y / scale), 3, labelled.pixel(left + x, y));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto capital = static_cast<char>(std::toupper(static_cast<unsigned char>(text[i])));
    const auto* glyph = std::ranges::find(kGlyphs, capital, &Glyph::letter);
    if (glyph == std::end(kGlyphs)) continue;
    for (int x = 0; x < 5; ++x)
      for (int y = 0; y < kHeight; ++y)
        if ((glyph->columns[x] >> y & 1) != 0)
          fill(labelled, margin + (static_cast<int>(i) * kAdvance + x) * dot, height + margin + y * dot, dot,
               0);
  }
  return labelled;
}

Image draw_image_grid(const std::vector<Tile>& tiles, const std::string& title, int columns) {
  if (tiles.empty()) {
    auto note = make_image(200 * kPixelScale, 60 * kPixelScale, 4);
    note.captions = {{0, 20 * kPixelScale, note.width, "no samples"}};
    return note;
  }
  for (const auto& tile : tiles) check_pixels(tile.picture);
  const int count = static_cast<int>(tiles.size());
  if (columns < 1) columns = static_cast<int>(std::ceil(std::sqrt(count * 1.2)));
  columns = std::min(columns, count);
  const int rows = (count + columns - 1) / columns;
  std::ptrdiff_t breaks = 0;  // of the caption with the most lines
  for (const auto& tile : tiles) breaks = std::max(breaks, std::ranges::count(tile.caption, '\n'));
  const int side = side_of(tiles), row = side + 7 + kLine * (1 + static_cast<int>(breaks)) + kGap;
  auto grid = make_image(kPixelScale * (2 * kPadding + columns * (side + kGap) - kGap),
                         kPixelScale * (2 * kPadding + rows * row - kGap), 4);
  grid.title = title;
  for (int i = 0; i < count; ++i) {
    const auto& tile = tiles[static_cast<std::size_t>(i)];
    const int left = kPadding + i % columns * (side + kGap), top = kPadding + i / columns * row;
    paste_enlarged(tile.picture, grid, kPixelScale * left, kPixelScale * top, kPixelScale * side);
    if (tile.wrong) paint_frame(grid, kPixelScale * left, kPixelScale * top, kPixelScale * side);
    grid.captions.push_back({kPixelScale * (left - kGap / 2), kPixelScale * (top + side + 5),
                             kPixelScale * (side + kGap), tile.caption, tile.wrong});
  }
  return grid;
}

}  // namespace ddprun::image
