#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ddprun {

/// Sets up spdlog's default logger, which writes "NAME: text", "NAME: warning: text" or "NAME: error: text"
/// to stderr, the word in colour on a terminal that supports it. The level comes from $LOGLEVEL (default
/// info). Each main calls it once.
void configure_logging(const std::string& name);

/// From now on leaves out lines that are neither warnings nor errors.
void log_only_problems();

/// Sets where visible lines go, with their '\n', instead of directly to stderr; empty: there again.
void log_to(std::function<void(std::string)> write);

/// Whether this is a terminal that understands escape sequences: $TERM is not "dumb".
bool takes_escapes(int descriptor);

/// Whether output to this descriptor may use colours: takes_escapes(), $TERM is set, and $NO_COLOR is not.
bool takes_colours(int descriptor);

// One line each. These keep spdlog's headers away from LibTorch's, which include another fmt.
void log_info(std::string_view line);
void log_warning(std::string_view line);
void log_error(std::string_view line);

}  // namespace ddprun
