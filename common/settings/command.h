// The table of a command's settings. Each row is a flag, an environment variable and a key of a TOML file,
// and is bound to the value it sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

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
  std::string example;  ///< of a value, as on the command line, for a file in which it has none
  std::string section;  ///< of the file and of the help; empty: top level
  std::string alias;    ///< "-r"
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
  Setting known_as(std::vector<std::string> flags) && { return with(&Setting::elsewhere, std::move(flags)); }
  Setting such_as(std::string value) && { return with(&Setting::example, std::move(value)); }
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

// A program's settings, as given by its command line, variables and files.
namespace ddprun::settings {

/// The text given for a setting, and its source: "--role", "PET_ROLE" or "job.toml:3: role".
struct Given {
  std::string text;  ///< for a switch: "true" or "false"
  std::string source;
  bool in_quotes = true;  ///< in messages; false for a file's numbers
};

/// What was given for each setting, by name.
class Values {
 public:
  std::vector<std::string> notes;  ///< what another program's flags were taken as, a line each

  /// A later value replaces an earlier one, except in a list.
  ///
  /// opposite  the switch was given as --no-NAME, so true turns it off
  /// throws    UsageError for a switch that is neither on nor off
  void add(const Setting& setting, Given given, bool opposite = false);
  /// Replaces values by those in upper.
  void overlay(const Values& upper);
  void drop_empty();
  void remove(const std::string& name) { all_.erase(name); }

  bool given(const std::string& name) const { return all_.count(name) > 0; }
  bool is_true(const std::string& name) const { return text(name) == "true"; }
  std::string text(const std::string& name, const std::string& fallback = "") const;
  std::vector<std::string> texts(const std::string& name) const;
  const std::string& source(const std::string& name) const { return all_.at(name).back().source; }
  const std::map<std::string, std::vector<Given>>& all() const { return all_; }

  /// Sets what was given. throws UsageError: "SOURCE: expected an integer from 1 to 9, got 'x'"
  void apply(const std::vector<Setting>& settings, const std::string& task = "") const;

  /// For a setting without set(): sets target to parse(text) if given. parse rejects a text with nullopt.
  template <typename Parse, typename Target>
  void read(const std::string& name, const std::string& expected, Parse parse, Target& target) const {
    if (!given(name)) return;
    auto value = parse(text(name));
    if (!value) reject(name, expected);
    target = *value;
  }
  [[noreturn]] void reject(const std::string& name, const std::string& expected) const;

 private:
  std::map<std::string, std::vector<Given>> all_;  // no list is empty
};

/// What another program's flag means here, or a value of it that our flag of the same name does not take.
/// "{}" in what stands for the value.
struct Foreign {
  enum class Means {
    kOurs,     ///< what: our flag and its value, "epochs={}"
    kNothing,  ///< what: why there is nothing to set
    kOther,    ///< what: the way to get it here, as it cannot be taken over
  };
  std::string name;   ///< "max-epochs"
  std::string value;  ///< the row is for this value; empty: for any
  Means means;
  std::string what;
  bool is_switch = false;  ///< has no value, or true or false
  /// Makes our value; nullopt: the row is not for this one. Empty: the value stays.
  std::function<std::optional<std::string>(const std::string& value)> convert = {};
};

/// A program, or one of its commands, and its settings.
struct Command {
  std::string name;                 ///< "worker mnist"
  std::string task;                 ///< "mnist": has this task's settings and those shared by all tasks
  std::string description, footer;  ///< in the help
  std::string usage = {};  ///< "worker sam --predict IMAGE ..."; empty: made from name and positionals
  std::vector<Setting> settings;
  std::vector<std::string> often;  ///< names of settings that the help shows first, under a heading
  /// Settings given without a flag, in this order, and their names in the help.
  std::vector<std::pair<std::string, std::string>> positionals;
  std::vector<Foreign> foreign = {};  ///< of a name and value the first row counts
  bool flags_first = false;  ///< flags end at the first non-flag; the rest belongs to the last positional
};

/// Reads the words of a command line: flags with dashes or underscores, as "--flag VALUE", "--flag=VALUE" or
/// "-fVALUE". "--" ends the flags. If a flag is repeated, the last one wins.
/// throws UsageError naming the word that is wrong
Values read_words(const std::vector<std::string>& words, const Command& command);

/// What a name and a value of another program mean here.
struct Adopted {
  const Setting* setting;  ///< null: there is nothing to set
  Given given;
  std::string note;  ///< "--max-epochs=3: taken as --epochs=3"
};

/// name  with or without Lightning's "trainer.", and with dashes
/// returns  nullopt if the table has no row for it, or the task not the setting
/// throws  UsageError for what cannot mean the same, naming the way to get it
std::optional<Adopted> adopt(const std::string& name, const Given& given, const Command& command);

/// Reads PREFIX_FLAG variables; ignores empty ones except for switches.
Values read_variables(const std::string& prefix, const EnvLookup& environment,
                      const std::vector<Setting>& settings);

/// "PREFIX_NO_PREFIX" of the flag --no-prefix
std::string variable_name(const std::string& prefix, const Setting& setting);

/// throws UsageError, with the usage, if a positional or one of these flags is missing
void require(const Command& command, const Values& values, const std::vector<std::string>& names = {});

/// Reads and applies the words of a command without variables and files; the positionals and these flags are
/// required. Prints the help and returns false if the words request it.
bool apply_words(const std::vector<std::string>& words, const Command& command,
                 const std::vector<std::string>& required = {});

/// Reads a TOML file of the command's settings:
///
///   task = "mnist"
///   [train]
///   epochs = 5
///
/// throws IoError if it cannot be read; UsageError, "FILE:LINE: ...", for what is not TOML, an unknown
/// section or key, one of another task, and a value of another type
Values read_toml(const std::filesystem::path& path, const Command& command);

/// A key at the top of the file, with its place; empty if absent. throws as read_toml()
Given top_level_text(const std::filesystem::path& path, const std::string& key);

/// The command's settings as a file for read_toml(). A setting without a value becomes a comment, from which
/// the '#' can be removed: the line then has its example.
///
/// whole  includes settings not needed to repeat a run, such as --out
std::string to_toml(const Command& command, bool whole);

/// ": did you mean mnist?" for a mistyped or unfinished name; empty if nothing is similar.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& names);

/// What --help shows: of a command that has flags used most, only these.
std::string help_text(const Command& command);
/// What --help-all shows: all flags.
std::string whole_help_text(const Command& command);

/// The columns of a help text.
inline constexpr std::size_t kHelpWidth = 80;

/// A line of a help text: a name in the left column, its explanation in the right one.
std::string help_line(const std::string& name, const std::string& help);

/// Prints a help text to stdout, with bold headings if the terminal supports them.
void print_help(const std::string& text);

}  // namespace ddprun::settings
