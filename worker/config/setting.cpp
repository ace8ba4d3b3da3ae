#include "worker/config/setting.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>

namespace ddprun::worker {
namespace {

std::optional<double> parse_number(const std::string& text, const Range& range) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool decimal = text.find_first_of("xX") == std::string::npos;
  const bool whole =
      decimal && !text.empty() && *end == '\0' && !std::isspace(static_cast<unsigned char>(text[0]));
  const bool inside = value <= range.high && (range.open_low ? value > range.low : value >= range.low);
  if (!whole || !std::isfinite(value) || !inside) return std::nullopt;
  return value;
}

Setting make(std::string name, Setting::Kind kind, std::string type_name, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.kind = kind;
  setting.type_name = std::move(type_name);
  setting.help = std::move(help);
  return setting;
}

/// Without get(): how a number that is not set looks is the target's matter.
template <typename Number>
Setting make_number(std::string name, Number& target, const Range& range, std::string help) {
  auto setting = make(std::move(name), Setting::Kind::kNumber, "X", std::move(help));
  setting.set = [&target, range](const std::string& text) -> std::string {
    const auto value = parse_number(text, range);
    if (!value) return range.expected;
    target = *value;
    return "";
  };
  return setting;
}

std::string to_text(const std::string& text) { return text; }
std::string to_text(const std::filesystem::path& path) { return path.string(); }

template <typename Text>
Setting make_text(std::string name, Text& target, std::string type_name, std::string help) {
  auto setting = make(std::move(name), Setting::Kind::kText, std::move(type_name), std::move(help));
  setting.set = [&target](const std::string& value) -> std::string {
    target = value;
    return "";
  };
  setting.get = [&target] { return target.empty() ? std::nullopt : std::optional<Value>(to_text(target)); };
  return setting;
}

}  // namespace

std::string Setting::key() const {
  auto text = name;
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

bool Setting::belongs_to(const std::string& task) const {
  return tasks.empty() || std::find(tasks.begin(), tasks.end(), task) != tasks.end();
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || std::isspace(static_cast<unsigned char>(text[0])))
    return std::nullopt;
  return value;
}

std::string one_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

std::string integer_from(std::int64_t low, std::int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

Setting boolean(std::string name, bool& target, std::string help) {
  auto setting = make(std::move(name), Setting::Kind::kBoolean, "", std::move(help));
  setting.set = [&target](const std::string& text) -> std::string {
    if (text != "true" && text != "false") return "true or false";
    target = text == "true";
    return "";
  };
  setting.get = [&target]() -> std::optional<Value> { return target; };
  return setting;
}

Setting negated(std::string name, bool& target, std::string help) {
  auto setting = boolean(std::move(name), target, std::move(help));
  setting.negated = true;
  return setting;
}

Setting number(std::string name, double& target, Range range, std::string help) {
  auto setting = make_number(std::move(name), target, range, std::move(help));
  setting.get = [&target, range]() -> std::optional<Value> {
    if (target > range.high || target < range.low || (range.open_low && target == range.low))
      return std::nullopt;
    return target;
  };
  return setting;
}

Setting number(std::string name, std::optional<double>& target, Range range, std::string help) {
  auto setting = make_number(std::move(name), target, range, std::move(help));
  setting.get = [&target] { return target ? std::optional<Value>(*target) : std::nullopt; };
  return setting;
}

Setting text(std::string name, std::string& target, std::string help) {
  return make_text(std::move(name), target, "TEXT", std::move(help));
}

Setting path(std::string name, std::filesystem::path& target, std::string help) {
  return make_text(std::move(name), target, "FILE", std::move(help));
}

Setting choice(std::string name, std::string& target, std::vector<std::string> names, std::string help) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& word : names) pairs.emplace_back(word, word);
  return choice<std::string>(std::move(name), target, std::move(pairs), std::move(help));
}

}  // namespace ddprun::worker
