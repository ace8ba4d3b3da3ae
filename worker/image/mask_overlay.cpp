#include "worker/image/mask_overlay.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ddprun::image {

Image overlay_mask(const Image& picture, const Image& mask, std::array<std::uint8_t, 3> colour,
                   double opacity) {
  check_pixels(mask);
  auto shown = to_rgb(picture);
  if (mask.channels != 1 || mask.width != picture.width || mask.height != picture.height)
    throw std::invalid_argument(
        "a mask for " + std::to_string(picture.width) + " x " + std::to_string(picture.height) +
        " pixels has one channel and as many pixels, got " + std::to_string(mask.width) + " x " +
        std::to_string(mask.height) + " with " + std::to_string(mask.channels));
  const double share = std::clamp(opacity, 0.0, 1.0);
  for (int y = 0; y < shown.height; ++y) {
    for (int x = 0; x < shown.width; ++x) {
      if (*mask.pixel(x, y) == 0) continue;
      auto* pixel = shown.pixel(x, y);
      for (std::size_t channel = 0; channel < 3; ++channel)
        pixel[channel] =
            static_cast<std::uint8_t>(std::lround((1 - share) * pixel[channel] + share * colour[channel]));
    }
  }
  return shown;
}

}  // namespace ddprun::image
