#pragma once

#include <map>
#include <string>
#include <vector>

#include <ddprun/common/settings/setting.h>

namespace ddprun::settings {

/// The text that was given for a setting, and where: "--role", "PET_ROLE" or "job.toml:3: role".
struct Given {
  std::string text;  ///< of a switch: "true" or "false"
  std::string source;
  bool in_quotes = true;  ///< how messages show it: not a file's numbers
};

/// What was given for each setting, by the setting's name.
class Values {
 public:
  /// A later value replaces an earlier one, except in a list.
  ///
  /// opposite  a switch was given by --no-NAME: true turns it off
  /// throws    UsageError for a switch that is neither on nor off
  void add(const Setting& setting, Given given, bool opposite = false);
  /// Takes all that upper has in place of what is here.
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

  /// For a setting that has no set(): parse(text) if it was given. parse returns nullopt to refuse the text.
  template <typename Parse, typename Target>
  void read(const std::string& name, const std::string& expected, Parse parse, Target& target) const {
    if (!given(name)) return;
    auto value = parse(text(name));
    if (!value) reject(name, expected);
    target = *value;
  }
  [[noreturn]] void reject(const std::string& name, const std::string& expected) const;

 private:
  std::map<std::string, std::vector<Given>> all_;  // never an empty list
};

}  // namespace ddprun::settings
