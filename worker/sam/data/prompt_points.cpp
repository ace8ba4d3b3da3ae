#include "worker/sam/data/prompt_points.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <regex>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::sam {
namespace {

constexpr std::size_t kMaxHeader = 4096;  // NumPy's own header has 128

/// The header's contents.
struct Layout {
  at::ScalarType type = at::kDouble;
  bool big_endian = false;
  bool fortran_order = false;
  std::int64_t rows = 0, columns = 0;
};

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kTypes = {{{"i1", at::kChar},
                                                                                 {"i2", at::kShort},
                                                                                 {"i4", at::kInt},
                                                                                 {"i8", at::kLong},
                                                                                 {"u1", at::kByte},
                                                                                 {"u2", at::kUInt16},
                                                                                 {"u4", at::kUInt32},
                                                                                 {"u8", at::kUInt64},
                                                                                 {"f4", at::kFloat},
                                                                                 {"f8", at::kDouble}}};

/// The header's text; removes everything before the values from `bytes`.
std::string take_header(std::string_view& bytes, const std::filesystem::path& path) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) throw IoError(path, "is not a NumPy file (.npy)");
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  const auto version = byte(6);
  if (version < 1 || version > 3)
    throw IoError(path, c10::str("has version ", version, " of the NumPy format, expected 1 to 3"));
  const std::size_t begin = version == 1 ? 10 : 12;
  const std::size_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kMaxHeader || begin + length > bytes.size())
    throw IoError(path, c10::str("has a header of ", length, " bytes, expected at most ",
                                 std::min(kMaxHeader, bytes.size() - begin)));
  auto header = std::string(bytes.substr(begin, length));
  header.erase(header.find_last_not_of(" \n") + 1);
  bytes.remove_prefix(begin + length);
  return header;
}

/// The header is a Python dict with its keys in alphabetical order.
Layout layout_of(const std::string& header, const std::filesystem::path& path) {
  static const std::regex kDict(
      R"(\s*\{\s*'descr'\s*:\s*'([<>|=]?)(\w\d)'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,)"
      R"(\s*'shape'\s*:\s*\(\s*(\d{1,12})\s*,\s*(\d{1,12})\s*,?\s*\)\s*,?\s*\}.*)");
  std::smatch parts;
  const bool fits = std::regex_match(header, parts, kDict);
  const auto* type = std::ranges::find(kTypes, fits ? parts.str(2) : "",
                                       &std::pair<std::string_view, at::ScalarType>::first);
  if (type == kTypes.end())
    throw IoError(path, "expected an array of two dimensions of integers or floats, got " + header);
  return {type->second, parts.str(1) == ">", parts.str(3) == "True", std::stoll(parts.str(4)),
          std::stoll(parts.str(5))};
}

namespace fs = std::filesystem;

constexpr std::string_view kSpaces = " \t\r";
constexpr std::array<std::string_view, 4> kColumnNames = {"index", "y", "x", "label"};
constexpr std::size_t kShown = 40;  // of an invalid value in a message

std::string shown(std::string_view text) {
  return "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "...'" : "'");
}

std::vector<std::string> fields_of(std::string_view line) {
  auto fields = split(line, ',');
  for (auto& field : fields) field = trimmed(field, kSpaces);
  return fields;
}

/// Collects rows of index, y, x and label, rejecting invalid ones.
class PointTable {
 public:
  PointTable(const fs::path& path, std::int64_t images)
      : path_(path), points_(static_cast<std::size_t>(images)) {}

  void add(const std::array<double, 4>& row, const std::string& where) {
    const auto [index, y, x, label] = row;
    const auto images = static_cast<double>(points_.size());
    if (!(index >= 0 && index < images) || index != std::floor(index))
      fail(where, "expected an index from 0 to " + shortest_text(images - 1) + ", one of " +
                      shortest_text(images) + " images, got " + shortest_text(index));
    if (!(x >= 0 && y >= 0) || !std::isfinite(x) || !std::isfinite(y))
      fail(where,
           "expected y and x of a pixel, 0 or more, got " + shortest_text(y) + ", " + shortest_text(x));
    if (label != 0 && label != 1)
      fail(where, "expected a label that is 1 (foreground) or 0 (background), got " + shortest_text(label));
    points_[static_cast<std::size_t>(index)].push_back({x, y, label == 1, where});
    ++count_;
  }

  std::vector<std::vector<PromptPoint>> take() {
    if (count_ == 0) throw IoError(path_, "holds no points");
    return std::move(points_);
  }

  [[noreturn]] void fail(const std::string& where, const std::string& message) const {
    throw IoError(path_, where + ": " + message);
  }

 private:
  const fs::path& path_;
  std::vector<std::vector<PromptPoint>> points_;
  std::size_t count_ = 0;
};

/// The file's column for each of kColumnNames; label may have none.
std::array<std::size_t, 4> places_of_columns(std::string_view line, const PointTable& table) {
  const auto names = fields_of(line);
  std::array<std::size_t, 4> places{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < kColumnNames.size(); ++i) {
    places[i] = static_cast<std::size_t>(std::ranges::find(names, kColumnNames[i]) - names.begin());
    found += places[i] < names.size() ? 1 : 0;
    if (i < 3 && places[i] == names.size()) found = names.size() + 1;  // a required one
  }
  if (found != names.size())
    table.fail("line 1",
               "expected the header index,y,x or index,y,x,label, got " + shown(trimmed(line, kSpaces)));
  return places;
}

std::string_view take_line(std::string_view& text) {
  const auto line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

void read_csv(std::string_view text, PointTable& table) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const auto header = take_line(text);
  const auto places = places_of_columns(header, table);
  const auto columns = fields_of(header).size();
  for (std::int64_t number = 2; !text.empty(); ++number) {
    const auto line = take_line(text);
    if (trimmed(line, kSpaces).empty()) continue;
    const auto where = "line " + std::to_string(number);
    const auto fields = fields_of(line);
    if (fields.size() != columns)
      table.fail(where, c10::str("expected ", columns, " values, as many as the header has names, got ",
                                 fields.size()));
    std::array<double, 4> row = {0, 0, 0, 1};
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (places[i] == columns) continue;
      const auto& field = fields[places[i]];
      const auto value = parse_number(field);
      if (!value)
        table.fail(where, "expected a number as " + std::string(kColumnNames[i]) + ", got " + shown(field));
      row[i] = *value;
    }
    table.add(row, where);
  }
}

void read_npy(std::string_view bytes, const fs::path& path, PointTable& table) {
  const auto array = decode_npy(bytes, path);
  const auto columns = array.size(1);
  if (columns != 3 && columns != 4)
    throw IoError(path, "expected 3 columns (index, y, x) or 4 (and label), got " + std::to_string(columns));
  const auto* row = array.const_data_ptr<double>();
  for (std::int64_t i = 0; i < array.size(0); ++i, row += columns)
    table.add({row[0], row[1], row[2], columns == 4 ? row[3] : 1}, "row " + std::to_string(i));
}

}  // namespace

at::Tensor decode_npy(std::string_view bytes, const std::filesystem::path& path) {
  const auto layout = layout_of(take_header(bytes, path), path);
  const auto bytes_each = c10::elementSize(layout.type);
  const auto rows = static_cast<std::size_t>(layout.rows), columns = static_cast<std::size_t>(layout.columns);
  const bool fits = columns == 0 || rows <= bytes.size() / columns;
  if (!fits || rows * columns * bytes_each != bytes.size())
    throw IoError(path, c10::str("holds ", bytes.size(), " bytes of values, expected ", rows, " x ", columns,
                                 " numbers of ", bytes_each, " bytes"));
  auto values = at::empty({layout.rows * layout.columns, static_cast<std::int64_t>(bytes_each)}, at::kByte);
  std::ranges::copy(bytes, values.mutable_data_ptr<std::uint8_t>());
  if (layout.big_endian != (std::endian::native == std::endian::big)) values = values.flip(1);
  const auto numbers = values.view(layout.type).to(at::kDouble);
  return layout.fortran_order ? numbers.view({layout.columns, layout.rows}).t().contiguous()
                              : numbers.view({layout.rows, layout.columns});
}

std::vector<std::vector<PromptPoint>> read_points(const fs::path& path, std::int64_t images) {
  const auto text = read_file(path, std::size_t{1} << 30);
  PointTable table(path, images);
  if (text.starts_with("\x93NUMPY"))
    read_npy(text, path, table);
  else
    read_csv(text, table);
  return table.take();
}

PromptPoint parse_point(const std::string& text) {
  const auto fields = fields_of(text);
  std::array<double, 3> values = {0, 0, 1};
  bool valid = fields.size() == 2 || fields.size() == 3;
  for (std::size_t i = 0; valid && i < fields.size(); ++i) {
    const auto number = parse_number(fields[i]);
    valid = number.has_value();
    values[i] = number.value_or(0);
  }
  const auto [x, y, label] = values;
  if (!valid || x < 0 || y < 0 || (label != 0 && label != 1))
    throw UsageError(
        "--point: expected X,Y or X,Y,LABEL, pixels from the top left and 1 (foreground) or 0, got " +
        shown(text));
  return {x, y, label == 1, "--point " + text};
}

}  // namespace ddprun::sam
