#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ddprun {

/// Sets up spdlog's default logger: one line an event on stderr, "NAME: text" for information and
/// "NAME: warning: text", "NAME: error: text" above it, level from $LOGLEVEL (default info). Called once by
/// each main.
void configure_logging(const std::string& name);

/// Called before each line that is shown, by a program that has drawn something on the terminal which must
/// make way for it. Empty: nothing is.
void before_logging(std::function<void()> hook);

/// One line each. Files that include LibTorch log through these: LibTorch brings an fmt of its own, which
/// spdlog's headers would pick up instead of the system's.
void log_debug(std::string_view line);
void log_info(std::string_view line);
void log_warning(std::string_view line);
void log_error(std::string_view line);

}  // namespace ddprun
