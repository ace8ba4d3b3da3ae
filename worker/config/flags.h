// Flags of the worker's commands other than training, such as `worker export`.
#pragma once

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/spelling.h>

namespace ddprun::worker {

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
