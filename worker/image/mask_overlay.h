#pragma once

#include <array>
#include <cstdint>

#include "worker/image/image.h"

namespace ddprun::image {

/// The picture as RGB, tinted wherever the mask is not zero.
///
/// picture  1, 3 or 4 channels
/// mask     1 channel, of the same size
/// colour   red, green, blue
/// opacity  0 (picture alone) to 1 (colour alone)
/// throws   std::invalid_argument if the sizes or channels do not fit
Image overlay_mask(const Image& picture, const Image& mask,
                   std::array<std::uint8_t, 3> colour = {30, 144, 255}, double opacity = 0.5);

}  // namespace ddprun::image
