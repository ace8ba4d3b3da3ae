#include <ddprun/train/state/checkpoint_name.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>
#include <variant>

#include <ddprun/common/errors.h>

namespace ddprun::train {
namespace {

using Number = std::variant<std::int64_t, double>;

/// As Python's repr(): the shortest digits that give the same number back.
std::string repr(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto write = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string(buffer.data(), end);
  };
  auto text = write(std::chars_format::scientific);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  text = write(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

/// [sign][0][width][.digits][type], a part of Python's format specifications.
struct Spec {
  std::string flags, width, digits;
  char type = 0;
};

std::optional<Spec> parse_spec(std::string_view text) {
  Spec spec;
  std::size_t i = 0;
  const auto here = [&] { return i < text.size() ? text[i] : '\0'; };
  const auto number = [&](std::string& into) {
    while (std::isdigit(static_cast<unsigned char>(here()))) into += text[i++];
    return into.size() <= 2;
  };
  if (here() == '+' || here() == ' ' || here() == '-') spec.flags += text[i++];
  if (here() == '0') spec.flags += text[i++];
  if (!number(spec.width)) return std::nullopt;
  if (here() == '.') {
    ++i;
    if (!number(spec.digits) || spec.digits.empty()) return std::nullopt;
  }
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) return std::nullopt;
  return spec;
}

template <typename Value>
std::string print(const std::string& format, Value value) {
  std::array<char, 512> buffer{};  // digits of the largest double, width and precision of two digits
  std::snprintf(buffer.data(), buffer.size(), format.c_str(), value);
  return buffer.data();
}

/// nullopt where Python refuses that type for that number.
std::optional<std::string> format(const Number& value, const Spec& spec) {
  std::string flags;
  for (const char flag : spec.flags)
    if (flag != '-') flags += flag;  // Python's default; in C it aligns
  const auto start = "%" + flags + spec.width;
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (spec.type == 'd' || (spec.type == 0 && integer != nullptr)) {
    if (integer == nullptr || !spec.digits.empty()) return std::nullopt;
    return print(start + "lld", static_cast<long long>(*integer));
  }
  const double number = integer != nullptr ? static_cast<double>(*integer) : std::get<double>(value);
  const auto digits = spec.digits.empty() ? "" : "." + spec.digits;
  if (spec.type == 0) {
    if (!digits.empty() || !spec.width.empty() || !flags.empty()) return std::nullopt;
    return repr(number);
  }
  if (spec.type == '%') return print(start + digits + "f", 100 * number) + "%";
  if (std::string_view("eEfFgG").find(spec.type) == std::string_view::npos) return std::nullopt;
  return print(start + digits + spec.type, number);
}

Number value_of(std::string_view name, const MetricValues& metrics, std::int64_t epoch, std::int64_t step) {
  if (name == "epoch") return epoch;
  if (name == "step") return step;
  for (const auto& [metric, value] : metrics)
    if (metric == name) return static_cast<double>(static_cast<float>(value));  // Lightning's are float32
  return std::int64_t{0};
}

}  // namespace

std::string checkpoint_name(const std::string& pattern, const MetricValues& metrics, std::int64_t epoch,
                            std::int64_t step, bool auto_insert) {
  if (pattern.empty()) return checkpoint_name("{epoch}-{step}", metrics, epoch, step, auto_insert);
  const auto refuse = [&](const std::string& why) {
    throw UsageError("checkpoint name '" + pattern + "': " + why);
  };
  std::string result;
  for (std::size_t i = 0; i < pattern.size();) {
    if (pattern[i] == '}') refuse("expected '{' before '}'");
    if (pattern[i] != '{') {
      result += pattern[i++];
      continue;
    }
    const auto end = pattern.find('}', i);
    if (end == std::string::npos) refuse("expected '}' after '{'");
    const auto field = pattern.substr(i + 1, end - i - 1);
    const auto colon = field.find(':');
    const auto name = field.substr(0, colon);
    if (name.empty() || name.find('{') != std::string::npos)
      refuse("expected a metric's name between '{' and '}'");
    const auto spec = parse_spec(colon == std::string::npos ? "" : std::string_view(field).substr(colon + 1));
    const auto text = spec ? format(value_of(name, metrics, epoch, step), *spec) : std::nullopt;
    if (!text) refuse("expected a format such as 02d or .2f for " + name + ", got '{" + field + "}'");
    result += auto_insert ? name + "=" + *text : *text;
    i = end + 1;
  }
  return result;
}

}  // namespace ddprun::train
