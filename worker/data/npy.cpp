#include "worker/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <regex>
#include <string>

#include "common/errors.h"

namespace ddprun::data {
namespace {

constexpr std::size_t kMaxHeader = 4096;  // NumPy's own has 128

/// What the header says.
struct Layout {
  char kind = 'f';  // i, u or f
  std::size_t bytes_each = 8;
  bool big_endian = false;
  bool fortran_order = false;
  std::int64_t rows = 0, columns = 0;
};

template <typename T>
double value_as(const std::array<char, 8>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return static_cast<double>(value);
}

double number_at(const char* at, const Layout& layout) {
  std::array<char, 8> bytes{};
  std::copy_n(at, layout.bytes_each, bytes.begin());
  if (layout.big_endian != (std::endian::native == std::endian::big))
    std::reverse(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(layout.bytes_each));
  const auto size = layout.bytes_each;
  if (layout.kind == 'f') return size == 4 ? value_as<float>(bytes) : value_as<double>(bytes);
  if (layout.kind == 'i')
    return size == 1   ? value_as<std::int8_t>(bytes)
           : size == 2 ? value_as<std::int16_t>(bytes)
           : size == 4 ? value_as<std::int32_t>(bytes)
                       : value_as<std::int64_t>(bytes);
  return size == 1   ? value_as<std::uint8_t>(bytes)
         : size == 2 ? value_as<std::uint16_t>(bytes)
         : size == 4 ? value_as<std::uint32_t>(bytes)
                     : value_as<std::uint64_t>(bytes);
}

std::int64_t to_size(const std::string& text, const std::filesystem::path& path) {
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || size < 0 || size > std::int64_t{1} << 40)
    throw IoError(path, "has a shape that no file holds: " + text);
  return size;
}

/// The header's text; `bytes` loses all up to the values.
std::string take_header(std::string_view& bytes, const std::filesystem::path& path) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!bytes.starts_with(kMagic) || bytes.size() < 12)
    throw IoError(path, "is no NumPy file (.npy), by how it begins");
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  const auto version = byte(6);
  if (version < 1 || version > 3)
    throw IoError(path, "has version " + std::to_string(version) + " of the NumPy format, expected 1 to 3");
  const std::size_t begin = version == 1 ? 10 : 12;
  const std::size_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kMaxHeader || begin + length > bytes.size())
    throw IoError(path, "has a header of " + std::to_string(length) + " bytes, expected at most " +
                            std::to_string(std::min(kMaxHeader, bytes.size() - begin)));
  auto header = std::string(bytes.substr(begin, length));
  header.erase(header.find_last_not_of(" \n") + 1);
  bytes.remove_prefix(begin + length);
  return header;
}

Layout layout_of(const std::string& header, const std::filesystem::path& path) {
  static const std::regex pattern(
      R"(\{ ?'descr': '([<>|=]?)([iuf])([1248])', 'fortran_order': (True|False), 'shape': \((\d+), (\d+),?\),? ?\})");
  std::smatch found;
  if (!std::regex_match(header, found, pattern) || (found[2] == "f" && found[3] != "4" && found[3] != "8"))
    throw IoError(path, "expected an array of two dimensions of integers or floats, got " + header);
  return {.kind = found.str(2)[0],
          .bytes_each = static_cast<std::size_t>(found.str(3)[0] - '0'),
          .big_endian = found[1] == ">",
          .fortran_order = found[4] == "True",
          .rows = to_size(found[5], path),
          .columns = to_size(found[6], path)};
}

}  // namespace

NpyTable decode_npy(std::string_view bytes, const std::filesystem::path& path) {
  const auto layout = layout_of(take_header(bytes, path), path);
  const auto rows = static_cast<std::size_t>(layout.rows), columns = static_cast<std::size_t>(layout.columns);
  const bool fits = columns == 0 || rows <= bytes.size() / columns;
  if (!fits || rows * columns * layout.bytes_each != bytes.size())
    throw IoError(path, "holds " + std::to_string(bytes.size()) + " bytes of values, expected " +
                            std::to_string(rows) + " x " + std::to_string(columns) + " numbers of " +
                            std::to_string(layout.bytes_each) + " bytes");
  NpyTable table{layout.rows, layout.columns, std::vector<double>(rows * columns)};
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column) {
      const auto place = layout.fortran_order ? column * rows + row : row * columns + column;
      table.values[row * columns + column] = number_at(bytes.data() + place * layout.bytes_each, layout);
    }
  return table;
}

}  // namespace ddprun::data
