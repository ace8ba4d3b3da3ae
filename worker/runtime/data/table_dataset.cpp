#include <ddprun/data/table_dataset.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::data {
namespace {

constexpr std::size_t kShown = 40;  // characters of an invalid value in a message
constexpr std::string_view kSpaces = " \t\r";

/// The whole text as a number, possibly not finite.
std::optional<double> to_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// Reads a table line by line.
class TableReader {
 public:
  TableReader(const std::filesystem::path& path, Label label)
      : path_(path), label_(label), text_(read_file(path)) {}

  TensorDataset read() {
    std::string_view rest = text_;
    if (rest.substr(0, 3) == "\xef\xbb\xbf") rest.remove_prefix(3);
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      const auto line = rest.substr(0, end);
      rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
      ++line_;
      if (trimmed(line, kSpaces).empty()) continue;
      split(line);
      if (columns_ == 0)
        take_first_line();
      else
        take_line();
    }
    if (values_.empty()) throw IoError(path_, "holds no examples, expected lines of numbers and a label");
    const auto columns = static_cast<std::int64_t>(columns_);
    const auto table = torch::tensor(values_).view({-1, columns});
    return {table.slice(1, 0, columns - 1).contiguous(), table.slice(1, columns - 1).contiguous()};
  }

 private:
  /// Splits the line's values into fields_, without quotes.
  void split(std::string_view line) {
    fields_.clear();
    for (;;) {
      const auto begin = line.find_first_not_of(kSpaces);
      const bool quoted = begin != line.npos && line[begin] == '"';
      if (quoted) line = take_quoted(line.substr(begin + 1));
      const auto comma = line.find(',');
      if (!quoted)
        fields_.emplace_back(trimmed(line.substr(0, comma), kSpaces));
      else if (!trimmed(line.substr(0, comma), kSpaces).empty())
        fail(fields_.size() - 1, "expected a comma after the closing quote", line.substr(0, comma));
      if (comma == line.npos) return;
      line.remove_prefix(comma + 1);
    }
  }

  /// text  what follows the opening quote. returns  what follows the closing one
  std::string_view take_quoted(std::string_view text) {
    std::string value;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '"') {
        if (i + 1 == text.size() || text[i + 1] != '"') {
          fields_.push_back(std::move(value));
          return text.substr(i + 1);
        }
        ++i;  // two quotes stand for one
      }
      value += text[i];
    }
    fail(fields_.size(), "expected a closing quote on this line", text);
  }

  void take_first_line() {
    if (fields_.size() < 2)
      throw IoError(path_, where() + ": expected at least two values, separated by commas, got one: '" +
                               shown(fields_[0]) + "'");
    columns_ = fields_.size();
    if (fields_.back().empty() || to_number(fields_.back()))
      take_line();
    else
      names_ = fields_;
  }

  void take_line() {
    if (fields_.size() != columns_)
      throw IoError(path_, where() + ": expected " + std::to_string(columns_) +
                               " values, as the lines before have, got " + std::to_string(fields_.size()));
    for (std::size_t column = 0; column < columns_; ++column) values_.push_back(value_of(column));
  }

  float value_of(std::size_t column) const {
    const auto& text = fields_[column];
    const auto number = to_number(text);
    if (!number) fail(column, "expected a number", text);
    const auto value = static_cast<float>(*number);
    if (!std::isfinite(value)) fail(column, "expected a finite number in the range of float", text);
    if (label_ == Label::kZeroOrOne && column + 1 == columns_ && value != 0 && value != 1)
      fail(column, "expected a label that is 0 or 1", text);
    return value;
  }

  std::string where() const { return "line " + std::to_string(line_); }

  static std::string shown(std::string_view text) {
    return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
  }

  [[noreturn]] void fail(std::size_t column, const std::string& expected, std::string_view got) const {
    const auto name = column < names_.size() ? " ('" + shown(names_[column]) + "')" : "";
    throw IoError(path_, where() + ", column " + std::to_string(column + 1) + name + ": " + expected +
                             ", got '" + shown(got) + "'");
  }

  const std::filesystem::path& path_;
  Label label_;
  std::string text_;
  std::int64_t line_ = 0;
  std::size_t columns_ = 0;  // known once the first line is read
  std::vector<std::string> names_, fields_;
  std::vector<float> values_;
};

}  // namespace

TensorDataset read_table(const std::filesystem::path& path, Label label) {
  return TableReader(path, label).read();
}

}  // namespace ddprun::data
