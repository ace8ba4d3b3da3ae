#pragma once

#include <filesystem>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// A JPEG file's picture: grey, or RGB. It is not turned as its EXIF data may ask.
///
/// path    for the message
/// throws  IoError if it is no JPEG, is damaged or cut off, has four inks (CMYK) or more than max_pixels
Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path,
                  std::int64_t max_pixels = std::int64_t{1} << 28);

}  // namespace ddprun::image
