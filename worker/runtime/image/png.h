#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// The picture as a PNG file's bytes, 8 bits a channel. The same picture gives the same bytes.
/// throws  std::invalid_argument unless it has 1, 3 or 4 channels, at least one pixel and all its bytes
std::string encode_png(const Image& image);

/// A PNG file's picture with 8 bits a channel: palettes become RGB, 16 bits are cut to 8, what is transparent
/// becomes RGBA.
///
/// path    for the message
/// throws  IoError if it is no PNG, is damaged or has more than max_pixels
Image decode_png(std::string_view bytes, const std::filesystem::path& path,
                 std::int64_t max_pixels = std::int64_t{1} << 28);

/// Whole numbers of pixels, as an instance mask has them, row by row from the top.
struct LabelMap {
  int width = 0;
  int height = 0;
  std::vector<std::uint16_t> values;  ///< width * height
};

/// The numbers of a PNG file that holds a mask, as they are in it: grey of 1 to 16 bits, or a palette's
/// entries. Also RGB, where red, green and blue are equal; what is transparent is not looked at.
///
/// throws  IoError as decode_png, and for colours
LabelMap decode_png_labels(std::string_view bytes, const std::filesystem::path& path,
                           std::int64_t max_pixels = std::int64_t{1} << 28);

/// throws  IoError, std::invalid_argument as encode_png
void write_png(const std::filesystem::path& path, const Image& image);
/// throws  IoError
Image read_png(const std::filesystem::path& path);

}  // namespace ddprun::image
