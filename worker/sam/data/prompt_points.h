#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::data {

/// A click into an image: its pixel is the one whose column is x and whose row is y, rounded.
struct PromptPoint {
  double x = 0;
  double y = 0;
  bool foreground = true;   ///< of what is meant; false: of what is not
  std::string origin = {};  ///< for messages: "line 7" or "row 6" of the file; empty: drawn at random
};

/// Reads the points of images from a file, CSV or NumPy's (.npy) by how it begins.
///
///   index,y,x,label        CSV: this header (label may be missing, the columns may be in another order),
///   then 0,37.5,120,1           a point a line, the lines in any order
///
///   float or int [rows, 3 or 4]    NumPy: the same columns in the order index, y, x, label
///
/// index    counts the images from 0, in the order of their names
/// label    1: foreground (so too without it), 0: background
/// images   how many there are
/// returns  the points of each image, in the order of the file; none for an image that it does not name
/// throws   IoError naming file and line or row: what is no number, an index or a label out of range, a
/// negative coordinate, a wrong number of values, no point at all
std::vector<std::vector<PromptPoint>> read_points(const std::filesystem::path& path, std::int64_t images);

/// Parses "X,Y" or "X,Y,LABEL", as `--point` has it: 120,37.5 or 120,37.5,0.
/// throws  UsageError naming --point
PromptPoint parse_point(const std::string& text);

}  // namespace ddprun::data
