#include <ddprun/common/text/one_line.h>

#include <algorithm>

namespace ddprun {

std::string one_line(std::string_view text) {
  std::string line(text);
  const auto is_control = [](char c) {
    return c == '\x7f' || (static_cast<unsigned char>(c) < 0x20 && c != '\t');
  };
  std::replace_if(line.begin(), line.end(), is_control, '?');
  return line;
}

}  // namespace ddprun
