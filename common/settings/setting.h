// The table of a command's settings. Each row is a flag, an environment variable and a key of a TOML file,
// and is bound to the value it sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ddprun/common/text.h>

namespace ddprun::settings {

/// A value with its type in TOML.
using Value = std::variant<bool, std::int64_t, double, std::string>;

struct Setting {
  /// What a file may contain. kSwitch: true or false; the flag takes no value. kScalar: a string, a number,
  /// true or false. kList: several of those; the flag may be repeated.
  enum class Kind { kSwitch, kInteger, kNumber, kText, kIntegerOrText, kScalar, kList };

  std::string name;  ///< "batch-size"; flags and keys may have underscores
  Kind kind = Kind::kText;
  std::string type_name;  ///< "N", for the help
  std::string help;
  std::string section;                 ///< of the file and of the help; empty: top level
  std::string alias;                   ///< "-r"
  std::vector<std::string> also;       ///< other flags with the same meaning: "--num-workers"
  std::vector<std::string> elsewhere;  ///< other programs' names of the flag, for "did you mean"
  std::vector<std::string> tasks;      ///< that have it; empty: all
  bool negated = false;                ///< a switch that is on by default: its flag is --no-NAME, or --NAME
  bool is_flag = true;
  bool in_file = true;
  bool in_variables = true;
  bool kept = true;           ///< needed to repeat a run
  bool may_be_empty = false;  ///< scripts fill the flag from variables that may be unset
  bool may_be_short = false;  ///< accepts an unambiguous beginning of the flag's name

  /// Sets the value from text. Returns "" or, if it rejects the text, what it expected: "an integer from 1 to
  /// 9". Empty: the program reads the text itself.
  std::function<std::string(const std::string& text)> set;
  std::function<std::optional<Value>()> get;  ///< nullopt: no value

  std::string flag() const { return (negated ? "--no-" : "--") + name; }
  std::string key() const;  ///< "batch_size"
  bool belongs_to(const std::string& task) const;

  Setting only(std::vector<std::string> of_tasks) && { return with(&Setting::tasks, std::move(of_tasks)); }
  Setting type(std::string shown) && { return with(&Setting::type_name, std::move(shown)); }
  Setting short_flag(std::string flag) && { return with(&Setting::alias, std::move(flag)); }
  Setting also_as(std::vector<std::string> flags) && { return with(&Setting::also, std::move(flags)); }
  Setting known_as(std::vector<std::string> flags) && { return with(&Setting::elsewhere, std::move(flags)); }
  Setting or_empty() && { return with(&Setting::may_be_empty, true); }
  Setting of_this_run() && { return with(&Setting::kept, false); }
  Setting not_in_file() && { return with(&Setting::in_file, false); }
  /// An action, such as --version: only the command line asks for it.
  Setting only_typed() && {
    in_variables = false;
    return std::move(*this).not_in_file();
  }
  Setting not_a_flag() && { return with(&Setting::is_flag, false); }

 private:
  template <typename Member, typename To>
  Setting with(Member Setting::*member, To&& value) {
    this->*member = std::forward<To>(value);
    return std::move(*this);
  }
};

/// Bounds of a number. A default outside them stands for "no value".
struct Range {
  double low;
  double high;
  bool open_low = false;  ///< low itself is not allowed
  std::string expected;   ///< "a number above 0"
  bool contains(double value) const { return value <= high && (open_low ? value > low : value >= low); }
};

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // JSON readers lose digits above it
inline constexpr std::int64_t kMaxInt = 2147483647;

/// Without a target, for a setting that the program reads itself.
Setting unbound(std::string name, Setting::Kind kind, std::string help = "");
/// -h, --help
Setting help_flag();
Setting boolean(std::string name, bool& target, std::string help = "");
Setting negated(std::string name, bool& target, std::string help = "");
/// Number: double, or std::optional of it.
template <typename Number>
Setting number(std::string name, Number& target, Range range, std::string help);
/// A time in seconds, with millisecond precision. Time: std::chrono::milliseconds, or std::optional of it.
template <typename Time>
Setting seconds(std::string name, Time& target, Range range, std::string help = "");
Setting text(std::string name, std::string& target, std::string help = "");
Setting path(std::string name, std::filesystem::path& target, std::string help = "");
Setting list(std::string name, std::vector<std::string>& target, std::string help);
Setting choice(std::string name, std::string& target, std::vector<std::string> names, std::string help = "");

/// Sets the target to parse(text), which is nullopt for a rejected text. Has no get.
///
/// expected  for the message about a rejected text
template <typename Target, typename Parse>
Setting parsed(std::string name, Target& target, Parse parse, std::string expected, std::string help = "") {
  Setting setting = unbound(std::move(name), Setting::Kind::kScalar, std::move(help));
  setting.set = [&target, parse = std::move(parse), expected = std::move(expected)](const std::string& text) {
    auto value = parse(text);
    if (!value) return expected;
    target = *std::move(value);
    return std::string();
  };
  return setting;
}

template <typename Integer>
Setting integer(std::string name, Integer& target, std::int64_t low, std::int64_t high, std::string help) {
  const auto parse = [low, high](const std::string& text) -> std::optional<Integer> {
    const auto value = parse_integer(text, low, high);
    return value ? std::optional(static_cast<Integer>(*value)) : std::nullopt;
  };
  Setting setting = parsed(std::move(name), target, parse, integer_from(low, high), std::move(help));
  setting.kind = Setting::Kind::kInteger;
  setting.type_name = "N";
  setting.get = [&target, low, high]() -> std::optional<Value> {
    const auto value = static_cast<std::int64_t>(target);
    return value < low || value > high ? std::nullopt : std::optional<Value>(value);
  };
  return setting;
}

template <typename Enum>
Setting choice(std::string name, Enum& target, std::vector<std::pair<std::string, Enum>> names,
               std::string help = "") {
  std::vector<std::string> words;
  for (const auto& entry : names) words.push_back(entry.first);
  const auto parse = [names](const std::string& text) -> std::optional<Enum> {
    for (const auto& [word, value] : names)
      if (word == text) return value;
    return {};
  };
  Setting setting = parsed(std::move(name), target, parse, one_of(words), std::move(help));
  setting.kind = Setting::Kind::kText;
  setting.type_name = joined(words, "|");
  setting.get = [&target, names]() -> std::optional<Value> {
    for (const auto& [word, value] : names)
      if (value == target) return word;
    return {};
  };
  return setting;
}

}  // namespace ddprun::settings
