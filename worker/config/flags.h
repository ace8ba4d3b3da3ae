// Flags of the worker's commands that are no training: what `worker bench-loader` and its like are made of.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/spelling.h>
#include "worker/config/setting.h"

namespace ddprun::worker {

/// A flag with a whole number from low to high.
template <typename Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& names, Integer& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  const auto check = [low, high](std::string& text) -> std::string {
    const auto value = parse_integer(text);
    if (!value || *value < low || *value > high)
      return "expected " + integer_from(low, high) + ", got '" + text + "'";
    text = std::to_string(*value);  // CLI11, which converts it next, would take 010 for octal
    return "";
  };
  return app.add_option(both_spellings(names), target, help)
      ->transform(CLI::Validator(check, ""))
      ->type_name("N");
}

/// Help without the underscored spellings, which would only double it.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    const auto& names = option->get_lnames();
    return positional || names.empty() ? CLI::Formatter::make_option_name(option, positional)
                                       : "--" + names.front();
  }
};

/// False if only help was asked for, which is printed.
///
/// app     named as the command line has it: "worker export"
/// throws  UsageError that begins with the name without "worker"
inline bool parse_or_help(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    const auto& name = app.get_name();
    throw UsageError(name.substr(name.find(' ') + 1) + ": " + error.what());
  }
  return true;
}

}  // namespace ddprun::worker
