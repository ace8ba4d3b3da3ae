// A program's settings, as given by its command line, variables and files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/settings/setting.h>
#include <ddprun/common/worker_env.h>

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
  /// A later value replaces an earlier one, except in a list.
  ///
  /// opposite  the switch was given as --no-NAME, so true turns it off
  /// throws    UsageError for a switch that is neither on nor off
  void add(const Setting& setting, Given given, bool opposite = false);
  /// Replaces values by those in upper.
  void overlay(const Values& upper);
  void drop_empty();

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
  bool flags_first = false;  ///< flags end at the first non-flag; the rest belongs to the last positional
};

/// Reads the words of a command line: flags with dashes or underscores, as "--flag VALUE", "--flag=VALUE" or
/// "-fVALUE". "--" ends the flags. If a flag is repeated, the last one wins.
/// throws UsageError naming the word that is wrong
Values read_words(const std::vector<std::string>& words, const Command& command);

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

/// The command's settings as a file for read_toml(). A setting without a value becomes a comment.
///
/// whole  includes settings not needed to repeat a run, such as --out
std::string to_toml(const Command& command, bool whole);

/// ": did you mean mnist?" for a mistyped or unfinished name; empty if nothing is similar.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& names);

/// What --help shows.
std::string help_text(const Command& command);

/// Prints a help text to stdout, with bold headings if the terminal supports them.
void print_help(const std::string& text);

}  // namespace ddprun::settings
