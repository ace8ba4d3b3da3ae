#include <ddprun/image/image.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ddprun::image {

Image make_image(int width, int height, int channels, std::uint8_t value) {
  Image image{width, height, channels, {}};
  image.bytes.assign(
      static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(channels),
      value);
  return image;
}

void check_pixels(const Image& image) {
  const auto text = std::to_string(image.width) + " x " + std::to_string(image.height) + " pixels with " +
                    std::to_string(image.channels) + " channels";
  if (image.channels != 1 && image.channels != 3 && image.channels != 4)
    throw std::invalid_argument("a picture has 1, 3 or 4 channels, got " + text);
  if (image.width < 1 || image.height < 1)
    throw std::invalid_argument("a picture has at least one pixel, got " + text);
  const auto size = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) *
                    static_cast<std::size_t>(image.channels);
  if (image.bytes.size() != size)
    throw std::invalid_argument(text + " are " + std::to_string(size) + " bytes, got " +
                                std::to_string(image.bytes.size()));
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

}  // namespace ddprun::image
