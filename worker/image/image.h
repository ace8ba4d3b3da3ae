#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::image {

/// Pixels, row by row from the top, the channels of a pixel side by side: grey (1), RGB (3) or RGBA (4).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> bytes;  ///< width * height * channels

  std::uint8_t* pixel(int x, int y) { return bytes.data() + offset(x, y); }
  const std::uint8_t* pixel(int x, int y) const { return bytes.data() + offset(x, y); }

 private:
  std::size_t offset(int x, int y) const {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) *
           static_cast<std::size_t>(channels);
  }
};

/// A picture of one colour: black, or fully transparent with 4 channels, unless told.
inline Image make_image(int width, int height, int channels, std::uint8_t value = 0) {
  Image image{width, height, channels, {}};
  image.bytes.assign(
      static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(channels),
      value);
  return image;
}

}  // namespace ddprun::image
