#pragma once

#include <string>

namespace ddprun::test {

/// Two lower-case digits per byte, so that any string survives JSON.
inline std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace ddprun::test
