#include <ddprun/common/text.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

Utf8Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  char32_t code = lead & (0x7f >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if (!is_continuation(text[i])) return {};
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || surrogate || code > 0x10ffff ? Utf8Character{} : Utf8Character{code, size};
}

namespace {

bool is_control(char32_t code) {
  const bool c0_or_c1 = (code < 0x20 && code != '\t') || (code >= 0x7f && code < 0xa0);
  const bool separator = code == 0x2028 || code == 0x2029;
  const bool direction = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return c0_or_c1 || separator || direction;
}

/// The size in bytes of the colour sequence at the start of the text, else 0.
std::size_t colour_sequence(std::string_view text) {
  if (text.substr(0, 2) != "\x1b[") return 0;
  const auto end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

/// The name after a '$', with or without braces, and its size in bytes. Empty: there is none.
struct Placeholder {
  std::string_view name;
  std::size_t size = 0;
};

Placeholder placeholder_at(std::string_view text) {
  const bool braced = !text.empty() && text[0] == '{';
  const std::size_t start = braced ? 1 : 0;
  std::size_t end = start;
  while (end < text.size() && (end == start ? is_name_start(text[end]) : is_name_char(text[end]))) ++end;
  if (end == start || (braced && (end == text.size() || text[end] != '}'))) return {};
  return {text.substr(start, end - start), end + start};
}

}  // namespace

std::string with_bold_headings(std::string_view text) {
  const auto lines = split(text, '\n');
  std::string result;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool heading =
        !lines[i].empty() && lines[i][0] != ' ' && i + 1 < lines.size() && lines[i + 1].starts_with("  ");
    result += (i > 0 ? "\n" : "") + (heading ? "\x1b[1m" + lines[i] + "\x1b[0m" : lines[i]);
  }
  return result;
}

std::string_view last_shown(std::string_view line) {
  if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<bool> parse_truth(std::string_view text) {
  for (const char* word : {"true", "True", "t", "yes", "y", "on", "1"})
    if (text == word) return true;
  for (const char* word : {"false", "False", "f", "no", "n", "off", "0"})
    if (text == word) return false;
  return {};
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  for (;;) {
    const auto end = text.find(separator);
    pieces.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::string_view trimmed(std::string_view text, std::string_view characters) {
  text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  return text.substr(0, text.find_last_not_of(characters) + 1);  // npos + 1 is 0
}

std::string lower_case(std::string text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return text;
}

std::string formatted(const char* format, ...) {
  std::va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string text(static_cast<std::size_t>(std::max(0, std::vsnprintf(nullptr, 0, format, values))), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(values);
  return text;
}

std::string shortest_text(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

std::string substituted(std::string_view text,
                        const std::function<std::optional<std::string>(std::string_view name)>& value_of) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (text[i] != '$') continue;
    const auto [name, size] = placeholder_at(text.substr(i + 1));
    if (const auto value = name.empty() ? std::nullopt : value_of(name)) {
      result.pop_back();
      result += *value;
      i += size;
    } else if (text.substr(i + 1, 1) == "$") {
      ++i;
    }
  }
  return result;
}

std::string utc_text(std::time_t time, const char* format) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

std::string with_dashes(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text.append(&word == &words.front() ? "" : separator) += word;
  return text;
}

std::string one_of(const std::vector<std::string>& names, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " " + last + " " : ", ") + names[i];
  return text;
}

std::string integer_from(std::int64_t low, std::int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const auto [code, size] = first_character(text);
    const bool control = (code < 0x20 && code != '\t' && code != '\n') || (code >= 0x7f && code < 0xa0);
    if (size == 0 || control) {
      valid += "\xef\xbf\xbd";
    } else {
      valid += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return valid;
}

std::string one_line(std::string_view text) {
  std::string line(text);
  const auto is_control = [](char c) {
    return c == '\x7f' || (static_cast<unsigned char>(c) < 0x20 && c != '\t');
  };
  std::ranges::replace_if(line, is_control, '?');
  return line;
}

std::string printable(std::string_view line) {
  std::string shown;
  while (!line.empty()) {
    if (const auto colour = colour_sequence(line)) {
      line.remove_prefix(colour);
      continue;
    }
    const Utf8Character character = first_character(line);
    if (character.size == 0 || is_control(character.code)) {
      shown += '?';
    } else {
      shown += line.substr(0, character.size);
    }
    line.remove_prefix(character.size == 0 ? 1 : character.size);
  }
  return shown;
}

std::vector<std::string> printable_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n')) lines.push_back(printable(last_shown(line)));
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string single_quoted(const std::string& text) { return "'" + printable(text) + "'"; }

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const auto shown = std::string(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
  return nlohmann::json(shown).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string shortened(const std::string& line, std::size_t max_bytes) {
  if (line.size() <= max_bytes) return line;
  std::size_t end = max_bytes > 3 ? max_bytes - 3 : 0;
  while (end > 0 && is_continuation(line[end])) --end;
  return line.substr(0, end) + "...";
}

std::vector<std::string> first_and_last(std::vector<std::string> lines, std::size_t first, std::size_t last) {
  if (lines.size() <= first + last + 1) return lines;  // the note would take the place of a single line
  const std::size_t left_out = lines.size() - first - last;
  const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(first);
  *begin = "... (" + std::to_string(left_out) + " lines left out)";
  lines.erase(begin + 1, begin + static_cast<std::ptrdiff_t>(left_out));
  return lines;
}

std::string in_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += one_line(row[i]) + std::string(widths[i] + 2 - row[i].size(), ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    const auto word = text.substr(begin, end - begin);
    begin = end + 1;
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

using nlohmann::json;

json parse_shallow_json(std::string_view text, int most_levels) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth >= most_levels)
      throw std::invalid_argument("is nested deeper than " + std::to_string(most_levels) + " levels");
    return true;
  };
  auto root = json::parse(text.begin(), text.end(), check_depth, /*allow_exceptions=*/false);
  if (root.is_discarded()) throw std::invalid_argument("is not JSON");
  return root;
}

json read_json(const std::filesystem::path& path, const char* expected) {
  return parse_json(read_file(path, kMostJsonBytes), path, expected);
}

json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected) {
  try {
    return parse_shallow_json(text);
  } catch (const std::invalid_argument& error) {
    throw IoError(path, std::string(error.what()) + ", expected " + expected);
  }
}

}  // namespace ddprun
