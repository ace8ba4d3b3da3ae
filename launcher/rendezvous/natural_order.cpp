#include "launcher/rendezvous/natural_order.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

bool is_digit(char c) { return '0' <= c && c <= '9'; }

/// Takes the number that text begins with, without the zeros in front.
std::string_view take_number(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit) - text.begin();
  const std::string_view number = text.substr(0, static_cast<std::size_t>(end));
  text.remove_prefix(number.size());
  return number;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const auto x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a.size() != whole_b.size() ? whole_a.size() < whole_b.size() : whole_a < whole_b;
}

}  // namespace ddprun::launcher
