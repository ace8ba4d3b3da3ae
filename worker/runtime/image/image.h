#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::image {

/// Pixels, row by row from the top, a pixel's channels side by side: grey (1), RGB (3) or RGBA (4).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> bytes;  ///< width * height * channels

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

}  // namespace ddprun::image
