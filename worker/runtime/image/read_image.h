#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// A picture from a PNG or JPEG file's bytes, which of the two they say themselves.
///
/// path    for the message
/// throws  IoError as decode_png() and decode_jpeg(), and if it is neither
Image decode_image(std::string_view bytes, const std::filesystem::path& path,
                   std::int64_t max_pixels = std::int64_t{1} << 28);

/// The same from a regular file. throws IoError
Image read_image(const std::filesystem::path& path, std::int64_t max_pixels = std::int64_t{1} << 28);

struct PictureSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool operator==(const PictureSize&) const = default;
};

/// What a PNG or JPEG file says of its size, without reading its pixels; nullopt if it is not to be had so
/// easily. Never throws: reading the file tells what is wrong with it.
std::optional<PictureSize> peek_size(const std::filesystem::path& path);

}  // namespace ddprun::image
