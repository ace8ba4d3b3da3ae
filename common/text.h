// Text: read from flags, files and variables, and made safe to show.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// The whole text as a decimal integer from low to high.
template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text, Integer low, Integer high) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

/// The whole text as a finite decimal number: "3", "1.5", "-1e-3".
std::optional<double> parse_number(std::string_view text);

/// true, t, yes, y, on or 1; false, f, no, n, off or 0; also True and False.
std::optional<bool> parse_truth(std::string_view text);

/// The pieces between the separators: at least one; pieces may be empty.
std::vector<std::string> split(std::string_view text, char separator);

/// The text without these characters at both ends; by default, without white space.
std::string_view trimmed(std::string_view text, std::string_view characters = " \t\r\n\v\f");

/// The text with A to Z in lower case.
std::string lower_case(std::string text);

/// As std::printf() prints it.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

/// The shortest text that reads back as this number: "0.1", "1e-06".
std::string shortest_text(double number);

/// Python's string.Template.safe_substitute: replaces ${name} and $name with value_of(name), and $$ with $.
/// Leaves a name without a value unchanged.
std::string substituted(std::string_view text,
                        const std::function<std::optional<std::string>(std::string_view name)>& value_of);

/// A time in UTC, as strftime() formats it.
std::string utc_text(std::time_t time, const char* format);

/// "a-b" for "a_b".
std::string with_dashes(std::string name);

std::string joined(const std::vector<std::string>& words, std::string_view separator);

/// "auto, cpu or cuda"
std::string one_of(const std::vector<std::string>& names, const std::string& last = "or");

/// "an integer from 1 to 9"
std::string integer_from(std::int64_t low, std::int64_t high);

struct Utf8Character {
  char32_t code = 0;
  std::size_t size = 0;  ///< bytes; 0: these bytes are not UTF-8
};

/// The first character of a non-empty text.
Utf8Character first_character(std::string_view text);

/// Whether the byte is the second or a later one of a character.
bool is_continuation(char byte);

/// The text with U+FFFD for each byte that is not UTF-8 and each control character except tab and newline.
std::string valid_utf8(std::string_view text);

/// The text with '?' for each ASCII control character except tab.
std::string one_line(std::string_view text);

/// One line that cannot drive a terminal: drops colours (ESC [ ... m), and shows '?' for other control
/// characters, C1 and changes of writing direction included, and for bytes that are not UTF-8. Keeps tabs.
std::string printable(std::string_view line);

/// A help text with bold headings on a terminal: lines at the margin that have indented lines below them.
std::string with_bold_headings(std::string_view text);

/// What a terminal finally shows of a line: the part after the last carriage return that is followed by
/// anything but another one. Without its line feed.
std::string_view last_shown(std::string_view line);

/// The lines of a text, each printable. A line overwritten after a carriage return, such as a
/// progress bar, shows its last state; drops a carriage return before a line feed, and empty lines at the
/// end.
std::vector<std::string> printable_lines(std::string_view text);

/// Untrusted text in a one-line message: printable and in single quotes.
std::string single_quoted(const std::string& text);

/// Untrusted text in double quotes, as ASCII without control characters, cut after 80 bytes.
std::string in_quotes(std::string_view text);

/// At most max_bytes of a line, never splitting a character; "..." replaces the rest.
std::string shortened(const std::string& line, std::size_t max_bytes);

/// The first and last of many lines, with "... (N lines left out)" in between.
std::vector<std::string> first_and_last(std::vector<std::string> lines, std::size_t first, std::size_t last);

/// Rows as lines of left-aligned columns, two blanks apart. Each row has as many cells as the first.
std::string in_columns(const std::vector<std::vector<std::string>>& rows);

/// The text in lines of at most width columns, broken at spaces. A longer word gets its own line.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);

/// Parses untrusted JSON. Limits the depth, since reading, printing and freeing a value recurse.
///
/// throws  std::invalid_argument: "is not JSON", "is nested deeper than 32 levels"
nlohmann::json parse_shallow_json(std::string_view text, int most_levels = 32);

/// Parses an untrusted file of at most kMostJsonBytes and 32 levels.
///
/// expected  what the file should be, for the message: "the config.json of a SamModel"
/// throws    IoError naming path
nlohmann::json read_json(const std::filesystem::path& path, const char* expected);

/// The same for text. path: the file to name in errors
nlohmann::json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected);

inline constexpr std::size_t kMostJsonBytes = 16 << 20;

}  // namespace ddprun
