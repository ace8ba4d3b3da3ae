#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// Encodes a picture as PNG, 8 bits per channel. The same picture always gives the same bytes.
/// throws  std::invalid_argument unless it has 1, 3 or 4 channels, at least one pixel and all its bytes
std::string encode_png(const Image& image);

/// Decodes a PNG file to 8 bits per channel: palettes become RGB, 16 bits are cut to 8, transparency gives
/// RGBA.
///
/// path    for the message
/// throws  IoError if it is not a PNG, is damaged or has more than max_pixels
Image decode_png(std::string_view bytes, const std::filesystem::path& path,
                 std::int64_t max_pixels = std::int64_t{1} << 28);

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
                           std::int64_t max_pixels = std::int64_t{1} << 28);

/// throws  IoError, std::invalid_argument as encode_png
void write_png(const std::filesystem::path& path, const Image& image);
/// throws  IoError
Image read_png(const std::filesystem::path& path);

}  // namespace ddprun::image
