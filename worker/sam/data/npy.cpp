#include "worker/sam/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <string>

#include <ddprun/common/errors.h>

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

/// Reads a header's text from the left; what is not as expected makes it bad for good.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : rest_(text) {}

  /// Whether this comes next, spaces before it left out; then it is passed over.
  bool has(std::string_view text) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void expect(std::string_view text) { good_ = has(text) && good_; }

  char letter() {
    if (rest_.empty()) return '\0';
    const char first = rest_[0];
    rest_.remove_prefix(1);
    return first;
  }
  std::int64_t size() {
    has("");
    std::int64_t size = -1;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
    good_ = good_ && error == std::errc() && size >= 0 && size <= std::int64_t{1} << 40;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return size;
  }
  bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

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

/// The header is a Python dict, its keys in the order of the alphabet.
Layout layout_of(const std::string& header, const std::filesystem::path& path) {
  HeaderText text(header);
  Layout layout;
  for (const auto* part : {"{", "'descr'", ":", "'"}) text.expect(part);
  layout.big_endian = text.has(">");
  if (!layout.big_endian) text.has("<") || text.has("|") || text.has("=");
  layout.kind = text.letter();
  layout.bytes_each = static_cast<std::size_t>(text.letter() - '0');
  for (const auto* part : {"'", ",", "'fortran_order'", ":"}) text.expect(part);
  layout.fortran_order = text.has("True");
  if (!layout.fortran_order) text.expect("False");
  for (const auto* part : {",", "'shape'", ":", "("}) text.expect(part);
  layout.rows = text.size();
  text.expect(",");
  layout.columns = text.size();
  text.has(",");
  text.expect(")");
  text.has(",");
  text.expect("}");
  const auto size = layout.bytes_each;
  const bool is_integer = layout.kind == 'i' || layout.kind == 'u';
  const bool known = size == 8 || size == 4 || (is_integer && (size == 1 || size == 2));
  if (!text.good() || !known || !(is_integer || layout.kind == 'f'))
    throw IoError(path, "expected an array of two dimensions of integers or floats, got " + header);
  return layout;
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
