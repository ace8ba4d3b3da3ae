#include <ddprun/common/text/printable.h>

#include <cstdint>

#include <ddprun/common/text/utf8.h>

namespace ddprun {
namespace {

bool is_control(char32_t code) {
  const bool c0_or_c1 = (code < 0x20 && code != '\t') || (code >= 0x7f && code < 0xa0);
  const bool separator = code == 0x2028 || code == 0x2029;
  const bool direction = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return c0_or_c1 || separator || direction;
}

/// Bytes of the colour sequence that the text begins with, else 0.
std::size_t colour_sequence(std::string_view text) {
  if (text.substr(0, 2) != "\x1b[") return 0;
  const auto end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

std::string_view last_state(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
}

}  // namespace

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
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(printable(last_state(text.substr(0, end))));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string shortened(const std::string& line, std::size_t max_bytes) {
  if (line.size() <= max_bytes) return line;
  std::size_t end = max_bytes > 3 ? max_bytes - 3 : 0;
  while (end > 0 && is_continuation(line[end])) --end;
  return line.substr(0, end) + "...";
}

std::vector<std::string> first_and_last(std::vector<std::string> lines, std::size_t first, std::size_t last) {
  if (lines.size() <= first + last + 1) return lines;  // the note would take the place of one line
  const std::size_t left_out = lines.size() - first - last;
  const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(first);
  *begin = "... (" + std::to_string(left_out) + " lines left out)";
  lines.erase(begin + 1, begin + static_cast<std::ptrdiff_t>(left_out));
  return lines;
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

std::string quoted(const std::string& text) { return "'" + printable(text) + "'"; }

}  // namespace ddprun
