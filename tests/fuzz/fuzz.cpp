#include "tests/fuzz/fuzz.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace ddprun::fuzz {
namespace {

/// Bytes of the character that the text begins with; 0 if it is not UTF-8. By the table 3-7 of the Unicode
/// standard, and so in another way than the code that is checked with it.
std::size_t character_size(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) {
    return at(i) >= low && at(i) <= high;
  };
  const auto tail = [&](std::size_t i) { return within(i, 0x80, 0xbf); };
  if (within(0, 0x00, 0x7f)) return 1;
  if (within(0, 0xc2, 0xdf) && tail(1)) return 2;
  const bool three = (at(0) == 0xe0 && within(1, 0xa0, 0xbf)) || (at(0) == 0xed && within(1, 0x80, 0x9f)) ||
                     (within(0, 0xe1, 0xef) && at(0) != 0xed && tail(1));
  if (three && tail(2)) return 3;
  const bool four = (at(0) == 0xf0 && within(1, 0x90, 0xbf)) || (at(0) == 0xf4 && within(1, 0x80, 0x8f)) ||
                    (within(0, 0xf1, 0xf3) && tail(1));
  return four && tail(2) && tail(3) ? 4 : 0;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

void expect(bool holds, std::string_view what, std::string_view got) {
  if (holds) return;
  std::fprintf(stderr, "broken: %.*s, got '%.*s'\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(got.size()), got.data());
  std::abort();
}

std::vector<std::string> split(std::string_view text, char separator, std::size_t most) {
  std::vector<std::string> pieces;
  while (pieces.size() + 1 < most) {
    const auto end = text.find(separator);
    if (end == std::string_view::npos) break;
    pieces.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  pieces.emplace_back(text);
  return pieces;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

bool is_safe_text(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) return false;
    if (is_control(text.substr(0, size)) && text[0] != '\t' && text[0] != '\n') return false;
    text.remove_prefix(size);
  }
  return true;
}

bool is_safe_line(std::string_view text) {
  return is_safe_text(text) && text.find('\n') == std::string_view::npos;
}

void expect_message(std::string_view message) {
  expect(!message.empty(), "a message says something");
  expect(is_safe_line(message), "a message is one line that drives no terminal", message);
}

void ScratchFile::write(std::string_view bytes) const {
  std::ofstream file(path(), std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  expect(static_cast<bool>(file.flush()), "the scratch file can be written", path().string());
}

}  // namespace ddprun::fuzz
