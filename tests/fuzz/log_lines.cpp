// What becomes of a worker's output: cut into lines, shown on a terminal, its end kept. The first byte says
// how the rest comes in: in pieces of so many bytes, or, for 'L', made so long that a line is cut.
#include <algorithm>

#include "launcher/output/line_format.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

constexpr std::size_t kMaxTail = 4 * OutputTail::kMaxBytes;  // of a long text: the rest shows nothing new

/// Calls use(piece) for the pieces of a text.
template <typename Use>
void in_pieces(std::string_view text, std::size_t size, Use use) {
  for (; !text.empty(); text.remove_prefix(std::min(size, text.size()))) use(text.substr(0, size));
}

void check_splitter(std::string_view text, std::size_t piece) {
  LineSplitter splitter;
  std::string_view rest = text;  // that has not come out yet
  in_pieces(text, piece, [&](std::string_view bytes) {
    splitter.add(bytes, [&](std::string_view line) {
      expect(line == rest.substr(0, line.size()), "lines are the bytes that came in");
      rest.remove_prefix(line.size());
      expect(!line.empty() && line.size() <= LineSplitter::kMaxLine, "a line is bounded");
      const auto newline = line.find('\n');
      expect(newline == line.size() - 1 ||
                 (newline == std::string_view::npos && line.size() == LineSplitter::kMaxLine),
             "a line has its end, and is cut only if it is too long");
    });
    expect(splitter.partial().size() < LineSplitter::kMaxLine, "what is kept is bounded");
  });
  expect(splitter.partial() == rest, "what has not ended yet is kept");
  expect(rest.find('\n') == std::string_view::npos, "what has ended comes out");
  const std::string before(last_shown(splitter.partial()));
  splitter.drop_overwritten();
  expect(last_shown(splitter.partial()) == before, "what a terminal shows is not dropped", before);
  expect(rest.substr(rest.size() - splitter.partial().size()) == splitter.partial(),
         "only a beginning is dropped");
}

/// A text without its colours, "ESC [ numbers m".
std::string without_colours(std::string_view text) {
  std::string rest;
  while (!text.empty()) {
    const auto escape = std::min(text.find("\x1b["), text.size());
    rest += text.substr(0, escape);
    text.remove_prefix(escape);
    if (text.empty()) break;
    const auto end = text.find_first_not_of("0123456789;:", 2);
    expect(end != std::string_view::npos && text[end] == 'm', "of escape sequences only colours are shown");
    text.remove_prefix(end + 1);
  }
  return rest;
}

void check_sanitized(std::string_view text) {
  const std::string shown = sanitized(text);
  const std::string plain = without_colours(shown);
  expect(is_safe_text(plain), "what is shown drives no terminal", shown);
  expect(sanitized(shown) == shown, "what is shown is shown as it is", shown);
  expect(shown.size() <= 3 * text.size() + 4, "what is shown is bounded", shown);
  if (is_safe_text(text)) expect(shown == text, "a harmless text stays as it is", shown);
  const auto colour = shown.rfind("\x1b[");
  const std::string last =
      colour == std::string::npos ? "" : shown.substr(colour, shown.find('m', colour) + 1 - colour);
  expect(last.empty() || last == "\x1b[m" || last == "\x1b[0m", "colours end with the text", shown);
}

void check_last_shown(std::string_view line) {
  const std::string_view shown = last_shown(line);
  expect(shown.find('\r') == std::string_view::npos, "what is shown last has no carriage return", shown);
  expect(line.find(shown) != std::string_view::npos, "what is shown last is of the line", shown);
  expect(last_shown(shown.substr(0, shown.find('\n'))) == shown.substr(0, shown.find('\n')), "it stays so",
         shown);
}

void check_tail(std::string_view text, std::size_t piece) {
  OutputTail tail, at_once;
  in_pieces(text, piece, [&](std::string_view bytes) { tail.add(bytes); });
  at_once.add(text);
  const auto lines = tail.lines();
  expect(lines == at_once.lines(), "a tail is the same however the bytes came in");
  expect(lines.size() <= OutputTail::kMaxLines, "a tail has few lines");
  std::size_t bytes = 0;
  for (const std::string& line : lines) {
    bytes += line.size();
    expect(line.find_first_of("\r\n") == std::string::npos, "a tail's line is one", line);
  }
  expect(bytes <= OutputTail::kMaxBytes, "a tail is bounded");
  if (!text.empty()) {
    const std::string_view last = text.substr(text.substr(0, text.size() - 1).rfind('\n') + 1);
    if (last.size() <= OutputTail::kMaxBytes)
      expect(lines.back() == last_shown(last), "a tail ends with the text");
  }
}

void check_prefix(std::string_view prefix_template) {
  const LineSource source{"role", 3, 11, "host"};
  const std::string prefix = line_prefix(prefix_template, source);
  std::string escaped;
  for (const char c : prefix_template) escaped += c == '$' ? std::string("$$") : std::string(1, c);
  expect(line_prefix(escaped, source) == prefix_template, "\"$$\" is \"$\"", escaped);
  if (prefix_template.find('$') == std::string_view::npos)
    expect(prefix == prefix_template, "a template without '$' stays as it is", prefix);
}

/// The text, its last line so often that it is too long, and the text again.
std::string lengthened(const std::string& text) {
  const std::string last = text.substr(text.rfind('\n') + 1) + "x";  // npos + 1 is 0
  std::string longer = text;
  longer.reserve(LineSplitter::kMaxLine + 3 * text.size() + 2);
  while (longer.size() <= LineSplitter::kMaxLine + text.size()) longer += last;
  return longer + text;
}

void run(char how, const std::string& text) {
  const bool is_long = how == 'L';
  const std::size_t piece = is_long ? 4093 : static_cast<std::size_t>(static_cast<unsigned char>(how)) + 1;
  const std::string all = is_long ? lengthened(text) : text;
  check_splitter(all, piece);
  check_splitter(all, all.size());
  check_tail(std::string_view(all).substr(0, kMaxTail), piece);
  check_sanitized(text);
  check_last_shown(text);
  check_prefix(text);
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  ddprun::fuzz::run(static_cast<char>(data[0]), std::string(ddprun::fuzz::text_of(data + 1, size - 1)));
  return 0;
}
