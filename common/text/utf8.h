#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

struct Utf8Character {
  char32_t code = 0;
  std::size_t size = 0;  ///< bytes; 0: these bytes are no UTF-8
};

/// The character at the begin of a text that is not empty.
Utf8Character first_character(std::string_view text);

/// Whether the byte is the second or a later one of a character.
bool is_continuation(char byte);

/// The text with U+FFFD for each byte that is no UTF-8 and each control character but tab and line end.
std::string valid_utf8(std::string_view text);

}  // namespace ddprun
