// A worker's text in a report: one text, as printable(), printable_lines(), wrapped() and the rest see it.
#include <ddprun/common/text.h>

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
namespace {

using Lines = std::vector<std::string>;

void check_printable(std::string_view text) {
  const std::string shown = printable(text);
  expect(is_safe_line(shown), "a printable line drives no terminal", shown);
  expect(printable(shown) == shown, "a printable line stays as it is", shown);
  expect(shown.size() <= text.size(), "a printable line is not longer", shown);
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; }))
    expect(shown == text, "plain text stays as it is", shown);
}

void check_lines(std::string_view text) {
  const Lines lines = printable_lines(text);
  const auto newlines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  expect(lines.size() <= newlines + 1, "lines are those of the text");
  for (const std::string& line : lines) expect(is_safe_line(line), "each line is printable", line);
  expect(lines.empty() || !lines.back().empty(), "no empty lines end it");

  for (const auto& [first, last] : {std::pair<std::size_t, std::size_t>{0, 0}, {1, 2}, {12, 8}}) {
    const Lines some = first_and_last(lines, first, last);
    expect(some.size() == std::min(lines.size(), first + last + 1), "some lines are left out");
    const auto kept = std::min(lines.size(), last);
    expect(std::equal(some.end() - static_cast<std::ptrdiff_t>(kept), some.end(),
                      lines.end() - static_cast<std::ptrdiff_t>(kept)),
           "the last lines are there");
    expect(std::equal(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(std::min(first, lines.size())),
                      lines.begin()),
           "the first lines are there");
  }
}

void check_shortened(std::string_view text) {
  const std::string line = printable(text);
  for (const std::size_t max : {std::size_t{0}, std::size_t{5}, std::size_t{20}, std::size_t{500}}) {
    const std::string shorter = shortened(line, max);
    expect(shorter.size() <= std::max(max, std::size_t{3}), "a line is shortened", shorter);
    expect(is_safe_line(shorter), "a character is not divided", shorter);
    if (line.size() <= max) expect(shorter == line, "a short line stays as it is", shorter);
  }
}

void check_wrapped(const std::string& text) {
  constexpr std::size_t kWidth = 20;
  std::string joined;
  const Lines lines = wrapped(text, kWidth);
  for (const std::string& line : lines) {
    expect(line.size() <= kWidth || line.find(' ') == std::string::npos, "a line fits or is one word", line);
    joined += line + " ";
  }
  expect(joined == text || joined == text + " ", "wrapped lines are the text", joined);
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  const std::string_view text = text_of(data, size);
  check_printable(text);
  check_lines(text);
  check_shortened(text);
  check_wrapped(std::string(text));
  return 0;
}
