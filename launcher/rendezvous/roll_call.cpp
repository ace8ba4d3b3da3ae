#include "launcher/rendezvous/roll_call.h"

#include <ddprun/common/text/printable.h>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMostItems = 8;
constexpr std::size_t kMostNameBytes = 64;  // as long as a host's name can be on Linux

std::string name(const std::string& text) { return shortened(printable(text), kMostNameBytes); }

/// "1", "3-7".
std::vector<std::string> ranges(const std::vector<int>& numbers) {
  std::vector<std::string> found;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    found.push_back(std::to_string(numbers[begin]));
    if (end - begin > 1) found.back() += "-" + std::to_string(numbers[end - 1]);
  }
  return found;
}

}  // namespace

std::string named(const Join& join, const std::string& address) {
  const std::string& where = join.address.empty() ? address : join.address;
  return name(join.node) + " (" + (where.empty() ? "the coordinator's host" : name(where)) + ")";
}

std::string few_of(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kMostItems; ++i) text += (i == 0 ? "" : ", ") + items[i];
  return items.size() <= kMostItems ? text
                                    : text + " and " + std::to_string(items.size() - kMostItems) + " more";
}

std::string node_ranks(const std::vector<int>& ranks, const std::vector<std::string>& names) {
  if (names.empty()) return (ranks.size() == 1 ? "node rank " : "node ranks ") + few_of(ranges(ranks));
  std::vector<std::string> items;
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    const std::string number = "node rank " + std::to_string(rank);
    items.push_back(index < names.size() ? name(names[index]) + " (" + number + ")" : number);
  }
  return few_of(items);
}

}  // namespace ddprun::launcher
