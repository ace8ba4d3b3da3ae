#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::image {

/// Pixels per unit of a panel's width and height: sharp on high-density screens. Pages measure pictures in
/// units.
constexpr int kPixelScale = 2;

/// Text that the report page shows over a place that a panel leaves free: centred in `width` pixels, from y
/// downwards. May have several lines.
struct Caption {
  int x = 0, y = 0, width = 0;
  std::string text;
  bool wrong = false;  ///< in red
};

/// Pixels, row by row from the top, a pixel's channels side by side: grey (1), RGB (3) or RGBA (4).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> bytes;     ///< width * height * channels
  std::string title = {};              ///< for the report page; PNG files keep it, and the captions
  std::vector<Caption> captions = {};  ///< the same

  /// The first channel of a pixel; the others follow.
  std::uint8_t* pixel(int x, int y) { return bytes.data() + offset(x, y); }
  const std::uint8_t* pixel(int x, int y) const { return bytes.data() + offset(x, y); }

 private:
  std::size_t offset(int x, int y) const {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) *
           static_cast<std::size_t>(channels);
  }
};

/// A picture with every byte set to value.
Image make_image(int width, int height, int channels, std::uint8_t value = 0);

/// throws  std::invalid_argument unless it has 1, 3 or 4 channels, at least one pixel and all its bytes
void check_pixels(const Image& image);

/// Copies a picture into another one with the same number of channels; it must fit.
void paste(const Image& picture, Image& onto, int left, int top);

/// Converts grey, RGB or RGBA to RGB on a white background.
Image to_rgb(const Image& image);

/// The picture as RGB, a small one enlarged, with a line of text below it. Letters are capitals; characters
/// other than letters, digits, '.', '-' and '%' are left blank.
Image with_label(const Image& picture, const std::string& text);

/// A small picture with a caption of one or more lines: "pred 3 / true 5".
struct Tile {
  Image picture;  ///< 1, 3 or 4 channels
  std::string caption;
  bool wrong = false;  ///< frame and caption in red
};

/// Arranges the tiles in rows, each picture scaled to the same square without smoothing, keeping its
/// proportions.
///
/// columns   0: makes the grid about square
/// returns   RGBA with a transparent ground, and the captions below their pictures; without tiles, a small
///           one with the caption "no samples"
/// throws    std::invalid_argument for a picture that encode_png() refuses
Image draw_image_grid(const std::vector<Tile>& tiles, const std::string& title = "", int columns = 0);

}  // namespace ddprun::image
