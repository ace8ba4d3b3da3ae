#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace ddprun::data {

/// A table of numbers from a NumPy file.
struct NpyTable {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;  ///< rows * columns, row by row; whole numbers are exact below 2^53
};

/// Reads an array of two dimensions as numpy.save() writes it: format versions 1 to 3, integers of 1 to 8
/// bytes and floats of 4 or 8, either byte order, C or Fortran order.
///
/// path    for the message
/// throws  IoError: no such file, an array of another kind, or not as many bytes as its shape needs
NpyTable decode_npy(std::string_view bytes, const std::filesystem::path& path);

}  // namespace ddprun::data
