#include "launcher/cli/host_list.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>

namespace ddprun::launcher {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kLongestName = 255, kMostDigits = 18;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

std::optional<long long> number(std::string_view text) {
  long long value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || text.size() > kMostDigits || !is_digit(text[0]) || error != std::errc() ||
      stopped != end)
    return {};
  return value;
}

/// What is between the commas that are in no bracket.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') inside = text[i] == '[';
    if (text[i] != ',' || inside) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

/// Adds "1-3" or "7", with leading zeros as the first number has them.
bool add_range(std::string_view text, std::size_t max_names, Names& numbers) {
  const auto dash = text.find('-');
  const auto first_text = text.substr(0, dash);
  const auto first = number(first_text);
  const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (!first || !last || *last < *first) return false;
  if (static_cast<std::size_t>(*last - *first) >= max_names - numbers.size()) return false;
  for (long long i = *first; i <= *last; ++i) {
    const std::string digits = std::to_string(i);
    const auto zeros = first_text.size() - std::min(first_text.size(), digits.size());
    numbers.push_back(std::string(zeros, '0') + digits);
  }
  return true;
}

/// What is in a bracket: "1-3,7".
std::optional<Names> expand_bracket(std::string_view text, std::size_t max_names) {
  Names numbers;
  for (const auto range : parts_of(text))
    if (!add_range(range, max_names, numbers)) return {};
  return numbers;
}

/// Every name followed by every number.
Names combined(const Names& names, const Names& numbers) {
  Names longer;
  for (const std::string& name : names)
    for (const std::string& digits : numbers) longer.push_back(name + digits);
  return longer;
}

/// One entry of the list: "r[1-2]n[1-4]".
std::optional<Names> expand_name(std::string_view text, std::size_t max_names) {
  if (text.empty()) return {};
  Names names{""};
  for (std::size_t i = 0; i < text.size();) {
    if (names[0].size() > kLongestName) return {};
    if (text[i] == '[') {
      const auto end = text.find(']', i);
      if (end == std::string_view::npos) return {};
      const auto numbers = expand_bracket(text.substr(i + 1, end - i - 1), max_names / names.size());
      if (!numbers) return {};
      names = combined(names, *numbers);
      i = end + 1;
    } else {
      if (!is_name_character(text[i])) return {};
      for (std::string& name : names) name += text[i];
      ++i;
    }
  }
  return names;
}

}  // namespace

std::optional<Names> expand_host_list(const std::string& text, std::size_t max_names) {
  Names names;
  for (const auto part : parts_of(text)) {
    auto expanded = expand_name(part, max_names);
    if (!expanded || expanded->size() > max_names - names.size()) return {};
    std::move(expanded->begin(), expanded->end(), std::back_inserter(names));
  }
  return names;
}

std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers) {
  constexpr long long kHighest = 1'000'000;
  std::vector<int> numbers;
  for (std::string_view part : parts_of(text)) {
    std::optional<long long> times = 1;
    if (const auto open = part.find("(x"); open != std::string_view::npos) {
      if (part.back() != ')') return {};
      times = number(part.substr(open + 2, part.size() - open - 3));
      part = part.substr(0, open);
    }
    const auto value = number(part);
    if (!value || *value < 1 || *value > kHighest || !times || *times < 1 ||
        static_cast<std::size_t>(*times) > max_numbers - numbers.size())
      return {};
    numbers.insert(numbers.end(), static_cast<std::size_t>(*times), static_cast<int>(*value));
  }
  return numbers;
}

}  // namespace ddprun::launcher
