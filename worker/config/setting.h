// What the configuration is made of: a setting is a flag of the command line, a key of the TOML file and an
// entry of a checkpoint's "config", all at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ddprun::worker {

/// A setting's value, with the type that it has in TOML.
using Value = std::variant<bool, std::int64_t, double, std::string>;

struct Setting {
  enum class Kind { kBoolean, kInteger, kNumber, kText, kIntegerOrText };

  std::string section;  ///< of the file
  std::string name;     ///< "batch-size"
  Kind kind = Kind::kText;
  std::string type_name;  ///< "N", for the help
  std::string help;
  bool negated = false;            ///< a switch that is on; --no-NAME turns it off
  bool in_run_folder = true;       ///< is written to the run folder's config.toml
  std::vector<std::string> tasks;  ///< that have it; none named: all
  /// Sets the value from text. returns  empty, or what was expected: "an integer from 1 to 9"
  std::function<std::string(const std::string& text)> set;
  std::function<std::optional<Value>()> get;  ///< nullopt: not set

  std::string flag() const { return (negated ? "--no-" : "--") + name; }
  std::string key() const;  ///< "batch_size"
  bool belongs_to(const std::string& task) const;

  Setting only(std::vector<std::string> of_tasks) && {
    tasks = std::move(of_tasks);
    return std::move(*this);
  }
  Setting type(std::string shown) && {
    type_name = std::move(shown);
    return std::move(*this);
  }
  Setting of_this_run() && {  ///< another run of the same configuration has one of its own
    in_run_folder = false;
    return std::move(*this);
  }
};

/// Bounds of a number. A value beyond them, which only a default can have, stands for "not set".
struct Range {
  double low;
  double high;
  bool open_low = false;  ///< low itself is not allowed
  std::string expected;   ///< "a number above 0"
};

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // beyond it, JSON readers lose digits
inline constexpr std::int64_t kMaxInt = 2147483647;

Setting boolean(std::string name, bool& target, std::string help);
Setting negated(std::string name, bool& target, std::string help);
Setting number(std::string name, double& target, Range range, std::string help);
Setting number(std::string name, std::optional<double>& target, Range range, std::string help);
Setting text(std::string name, std::string& target, std::string help);
Setting path(std::string name, std::filesystem::path& target, std::string help);
Setting choice(std::string name, std::string& target, std::vector<std::string> names, std::string help);

/// From text in decimal; nullopt if it is no such number, whole.
std::optional<std::int64_t> parse_integer(const std::string& text);

/// "auto, cpu or cuda"
std::string one_of(const std::vector<std::string>& names);

/// "an integer from 1 to 9"
std::string integer_from(std::int64_t low, std::int64_t high);

template <typename Integer>
Setting integer(std::string name, Integer& target, std::int64_t low, std::int64_t high, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.kind = Setting::Kind::kInteger;
  setting.type_name = "N";
  setting.help = std::move(help);
  setting.set = [&target, low, high](const std::string& text) -> std::string {
    const auto value = parse_integer(text);
    if (!value || *value < low || *value > high) return integer_from(low, high);
    target = static_cast<Integer>(*value);
    return "";
  };
  setting.get = [&target, low, high]() -> std::optional<Value> {
    const auto value = static_cast<std::int64_t>(target);
    if (value < low || value > high) return std::nullopt;
    return value;
  };
  return setting;
}

template <typename Enum>
Setting choice(std::string name, Enum& target, std::vector<std::pair<std::string, Enum>> names,
               std::string help) {
  std::vector<std::string> words;
  for (const auto& entry : names) words.push_back(entry.first);
  Setting setting;
  setting.name = std::move(name);
  setting.type_name = "NAME";
  setting.help = std::move(help);
  setting.set = [&target, names, words](const std::string& text) -> std::string {
    for (const auto& [word, value] : names)
      if (word == text) {
        target = value;
        return "";
      }
    return one_of(words);
  };
  setting.get = [&target, names]() -> std::optional<Value> {
    for (const auto& [word, value] : names)
      if (value == target) return word;
    return std::nullopt;
  };
  return setting;
}

}  // namespace ddprun::worker
