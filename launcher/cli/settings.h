#pragma once

#include <map>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/text/printable.h>
#include "launcher/cli/flags.h"

namespace ddprun::launcher {

/// The settings by name, with messages that name where a bad one came from.
class Settings {
 public:
  explicit Settings(const CommandLine& line) : settings_(line.settings) {}

  bool given(const std::string& name) const { return settings_.count(name) > 0; }
  bool is_true(const std::string& name) const { return text(name, "false") == "true"; }
  std::string text(const std::string& name, const std::string& fallback = "") const {
    const auto found = settings_.find(name);
    return found == settings_.end() ? fallback : found->second.text;
  }

  std::string source(const std::string& name) const { return settings_.at(name).source; }

  /// parse(text) if it was given: a parser of option_values.h, which returns none for what it does not take.
  template <typename Parse, typename Target>
  void read(const std::string& name, const std::string& expected, Parse parse, Target& target) const {
    if (!given(name)) return;
    auto value = parse(text(name));
    if (!value) reject(name, expected);
    target = *value;
  }

  [[noreturn]] void reject(const std::string& name, const std::string& expected) const {
    const Setting& setting = settings_.at(name);
    throw UsageError(setting.source + ": expected " + expected + ", got " + quoted(setting.text));
  }

 private:
  const std::map<std::string, Setting>& settings_;
};

}  // namespace ddprun::launcher
