#include "worker/sam/data/prompt_points.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "worker/sam/data/npy.h"

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpaces = " \t\r";
constexpr std::array<std::string_view, 4> kColumns = {"index", "y", "x", "label"};
constexpr std::size_t kShown = 40;  // of a wrong value in a message

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string shown(std::string_view text) {
  return "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "...'" : "'");
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == line.npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string plain(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// Takes rows of index, y, x and label, and refuses what makes no sense.
class PointTable {
 public:
  PointTable(const fs::path& path, std::int64_t images)
      : path_(path), points_(static_cast<std::size_t>(images)) {}

  void add(const std::array<double, 4>& row, const std::string& where) {
    const auto [index, y, x, label] = row;
    const auto images = static_cast<double>(points_.size());
    if (!(index >= 0 && index < images) || index != std::floor(index))
      fail(where, "expected an index from 0 to " + plain(images - 1) + ", one of " + plain(images) +
                      " images, got " + plain(index));
    if (!(x >= 0 && y >= 0) || !std::isfinite(x) || !std::isfinite(y))
      fail(where, "expected y and x of a pixel, 0 or more, got " + plain(y) + ", " + plain(x));
    if (label != 0 && label != 1)
      fail(where, "expected a label that is 1 (foreground) or 0 (background), got " + plain(label));
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

/// Which column of the file each of kColumns is; label may have none.
std::array<std::size_t, 4> places_of_columns(std::string_view line, const PointTable& table) {
  const auto names = split(line);
  std::array<std::size_t, 4> places{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    places[i] = static_cast<std::size_t>(std::find(names.begin(), names.end(), kColumns[i]) - names.begin());
    found += places[i] < names.size() ? 1 : 0;
    if (i < 3 && places[i] == names.size()) found = names.size() + 1;  // one that there must be
  }
  if (found != names.size())
    table.fail("line 1", "expected the header index,y,x or index,y,x,label, got " + shown(trimmed(line)));
  return places;
}

/// The lines of a CSV file, read as the first one, the header, says.
class CsvReader {
 public:
  CsvReader(std::string_view header, PointTable& table)
      : table_(table), places_(places_of_columns(header, table)), columns_(split(header).size()) {}

  void add(std::string_view line, std::int64_t number) {
    if (trimmed(line).empty()) return;
    const auto where = "line " + std::to_string(number);
    const auto fields = split(line);
    if (fields.size() != columns_)
      table_.fail(where, "expected " + std::to_string(columns_) + " values, as the header has names, got " +
                             std::to_string(fields.size()));
    std::array<double, 4> row = {0, 0, 0, 1};
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (places_[i] == columns_) continue;
      const auto field = fields[places_[i]];
      const auto value = to_number(field);
      if (!value)
        table_.fail(where, "expected a number as " + std::string(kColumns[i]) + ", got " + shown(field));
      row[i] = *value;
    }
    table_.add(row, where);
  }

 private:
  PointTable& table_;
  std::array<std::size_t, 4> places_;
  std::size_t columns_;
};

std::string_view take_line(std::string_view& text) {
  const auto line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

void read_csv(std::string_view text, PointTable& table) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  CsvReader reader(take_line(text), table);
  for (std::int64_t number = 2; !text.empty(); ++number) reader.add(take_line(text), number);
}

void read_npy(std::string_view bytes, const fs::path& path, PointTable& table) {
  const auto array = decode_npy(bytes, path);
  if (array.columns != 3 && array.columns != 4)
    throw IoError(path,
                  "expected 3 columns (index, y, x) or 4 (and label), got " + std::to_string(array.columns));
  const auto columns = static_cast<std::size_t>(array.columns);
  for (std::size_t i = 0; i < static_cast<std::size_t>(array.rows); ++i) {
    const auto* row = array.values.data() + i * columns;
    table.add({row[0], row[1], row[2], columns == 4 ? row[3] : 1}, "row " + std::to_string(i));
  }
}

}  // namespace

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
  const auto fields = split(text);
  std::array<double, 3> values = {0, 0, 1};
  bool valid = fields.size() == 2 || fields.size() == 3;
  for (std::size_t i = 0; valid && i < fields.size(); ++i) {
    const auto number = to_number(fields[i]);
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

}  // namespace ddprun::data
