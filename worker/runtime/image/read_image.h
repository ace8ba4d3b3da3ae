#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// Decodes a JPEG file to grey or RGB. Ignores the EXIF orientation.
///
/// path    for the message
/// throws  IoError if it is not a JPEG, is damaged or truncated, is CMYK or has more than max_pixels
Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path,
                  std::int64_t max_pixels = std::int64_t{1} << 28);

/// Decodes a PNG or JPEG file, recognised by its content.
///
/// path    for the message
/// throws  IoError as decode_png() and decode_jpeg(), and if it is neither
Image decode_image(std::string_view bytes, const std::filesystem::path& path,
                   std::int64_t max_pixels = std::int64_t{1} << 28);

/// Reads a regular file. throws IoError
Image read_image(const std::filesystem::path& path, std::int64_t max_pixels = std::int64_t{1} << 28);

struct PictureSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool operator==(const PictureSize&) const = default;
};

/// The size in a PNG or JPEG file's header; nullopt if it is not easy to find. Never throws: reading the file
/// reports what is wrong with it.
std::optional<PictureSize> peek_size(const std::filesystem::path& path);

}  // namespace ddprun::image
