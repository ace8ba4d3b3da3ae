#include <ddprun/common/spelling.h>

#include <algorithm>

namespace ddprun {

std::string both_spellings(std::string_view names) {
  std::string all(names);
  for (std::size_t begin = 0; begin <= names.size();) {
    const auto end = std::min(names.find(',', begin), names.size());
    const auto name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name.substr(0, 2) != "--" || name.find('-', 2) == std::string_view::npos) continue;
    std::string underscored(name);
    std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
    all += "," + underscored;
  }
  return all;
}

}  // namespace ddprun
