#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::sam {

/// Reads a two-dimensional array in numpy.save()'s format: versions 1 to 3, integers of 1 to 8 bytes and
/// floats of 4 or 8, either byte order, C or Fortran order.
///
/// path     for the message
/// returns  float64 [rows, columns], contiguous; integers are exact below 2^53
/// throws   IoError: another kind of array, or a size that does not match its shape
at::Tensor decode_npy(std::string_view bytes, const std::filesystem::path& path);

/// A click on the pixel in column x and row y of an image, rounded.
struct PromptPoint {
  double x = 0;
  double y = 0;
  bool foreground = true;   ///< on the object; false: on the background
  std::string origin = {};  ///< for messages: "line 7" or "row 6" of the file; empty: drawn at random
};

/// Reads the points of images from a CSV or NumPy (.npy) file, recognised by its content.
///
///   index,y,x,label        CSV: this header (columns in any order, label optional), then a point per line,
///   in 0,37.5,120,1           any order
///
///   float or int [rows, 3 or 4]    NumPy: the same columns in the order index, y, x, label
///
/// index    the image's number, from 0, in the order of their names
/// label    1: foreground (default), 0: background
/// images   how many images there are
/// returns  the points of each image, in the file's order; images missing from the file have none
/// throws   IoError naming file and line or row: not a number, index or label out of range, negative
///          coordinate, wrong number of values, no points at all
std::vector<std::vector<PromptPoint>> read_points(const std::filesystem::path& path, std::int64_t images);

/// Parses the value of `--point`, X,Y or X,Y,LABEL: 120,37.5 or 120,37.5,0.
/// throws  UsageError naming --point
PromptPoint parse_point(const std::string& text);

}  // namespace ddprun::sam
