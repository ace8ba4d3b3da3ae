#pragma once

#include <filesystem>
#include <string_view>

#include "worker/image/image.h"

namespace ddprun::image {

/// A picture from a PNG or JPEG file's bytes, which of the two they say themselves.
///
/// path    for the message
/// throws  IoError as decode_png() and decode_jpeg(), and if it is neither
Image decode_image(std::string_view bytes, const std::filesystem::path& path,
                   std::int64_t max_pixels = std::int64_t{1} << 28);

/// The same from a file. throws IoError
Image read_image(const std::filesystem::path& path, std::int64_t max_pixels = std::int64_t{1} << 28);

}  // namespace ddprun::image
