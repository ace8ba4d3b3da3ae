#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// Encodes a picture with its title and captions as PNG, 8 bits per channel. The same picture always gives
/// the same bytes.
/// throws  std::invalid_argument unless it has 1, 3 or 4 channels, at least one pixel and all its bytes
std::string encode_png(const Image& image);

constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

/// Decodes a PNG file to 8 bits per channel: palettes become RGB, 16 bits are cut to 8, transparency gives
/// RGBA.
///
/// path    for the message
/// throws  IoError if it is not a PNG, is damaged or has more than max_pixels
Image decode_png(std::string_view bytes, const std::filesystem::path& path,
                 std::int64_t max_pixels = kMostPixels);

/// One integer per pixel, as in an instance mask, row by row from the top.
struct LabelMap {
  int width = 0;
  int height = 0;
  std::vector<std::uint16_t> values;  ///< width * height
};

/// Reads a mask from a PNG file, values unchanged: grey of 1 to 16 bits, or palette indices. Also RGB with
/// red, green and blue equal; transparency is ignored.
///
/// throws  IoError as decode_png, and for colours
LabelMap decode_png_labels(std::string_view bytes, const std::filesystem::path& path,
                           std::int64_t max_pixels = kMostPixels);

/// throws  IoError, std::invalid_argument as encode_png
void write_png(const std::filesystem::path& path, const Image& image);
/// throws  IoError
Image read_png(const std::filesystem::path& path);

/// Decodes a JPEG file to grey or RGB. Ignores the EXIF orientation.
///
/// path    for the message
/// throws  IoError if it is not a JPEG, is damaged or truncated, is CMYK or has more than max_pixels
Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path,
                  std::int64_t max_pixels = kMostPixels);

/// Decodes a PNG or JPEG file, recognised by its content.
///
/// path    for the message
/// throws  IoError as decode_png() and decode_jpeg(), and if it is neither
Image decode_image(std::string_view bytes, const std::filesystem::path& path,
                   std::int64_t max_pixels = kMostPixels);

/// Reads a regular file. throws IoError
Image read_image(const std::filesystem::path& path, std::int64_t max_pixels = kMostPixels);

struct PictureSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool operator==(const PictureSize&) const = default;
};

/// The size in a PNG or JPEG file's header; nullopt if it is not easy to find. Never throws: reading the file
/// reports what is wrong with it.
std::optional<PictureSize> peek_size(const std::filesystem::path& path);

}  // namespace ddprun::image
