#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// All of the text as a whole number, decimal, from low to high.
template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text, Integer low, Integer high) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

/// All of the text as a finite number, decimal: "3", "1.5", "-1e-3".
std::optional<double> parse_number(std::string_view text);

/// true, t, yes, y, on or 1; false, f, no, n, off or 0; also True and False.
std::optional<bool> parse_truth(std::string_view text);

/// The pieces between the separators; at least one, maybe empty.
std::vector<std::string> split(std::string_view text, char separator);

/// The other spelling of a name: "a-b" of "a_b".
std::string with_dashes(std::string name);

/// "auto, cpu or cuda"
std::string one_of(const std::vector<std::string>& names);

/// "an integer from 1 to 9"
std::string integer_from(std::int64_t low, std::int64_t high);

}  // namespace ddprun
