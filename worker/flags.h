// Kinds of command line flags: what the worker's flags are made of. Only config.cpp and ddp_flags.cpp need
// it.
#pragma once

#include <CLI/CLI.hpp>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "common/spelling.h"

namespace ddprun {

/// A flag with a whole number from low to high.
template <typename Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& names, Integer& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  const auto check = [low, high](std::string& text) -> std::string {
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (!text.empty() && *end == '\0' && errno == 0 && value >= low && value <= high &&
        !std::isspace(text[0])) {
      text = std::to_string(value);  // CLI11, which converts it next, would take 010 for octal
      return "";
    }
    return "expected an integer from " + std::to_string(low) + " to " + std::to_string(high) + ", got '" +
           text + "'";
  };
  return app.add_option(both_spellings(names), target, help)
      ->transform(CLI::Validator(check, ""))
      ->type_name("N");
}

/// A flag with a number from low to high, both included; with open_low, low itself is not allowed.
template <typename Number>
CLI::Option* add_number(CLI::App& app, const std::string& names, Number& target, double low, double high,
                        bool open_low, const std::string& expected, const std::string& help) {
  const auto check = [=](std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool in_range = value <= high && (open_low ? value > low : value >= low);
    if (!text.empty() && *end == '\0' && std::isfinite(value) && in_range && !std::isspace(text[0]))
      return "";
    return "expected " + expected + ", got '" + text + "'";
  };
  return app.add_option(both_spellings(names), target, help)
      ->check(CLI::Validator(check, ""))
      ->type_name("X");
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

}  // namespace ddprun
