#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ddprun {

/// Sets up spdlog's default logger, which writes "NAME: text", "NAME: warning: text" or "NAME: error: text"
/// to stderr, the word in colour on a terminal that supports it. The level comes from $LOGLEVEL (default
/// info). Each main calls it once.
void configure_logging(const std::string& name);

/// Sets a function to call before each visible line, such as to clear a progress bar; empty: none.
void before_logging(std::function<void()> hook);

/// Whether output to this descriptor may use colours: a terminal, unless $NO_COLOR is set or $TERM is "dumb".
bool takes_colours(int descriptor);

// One line each. These keep spdlog's headers away from LibTorch's, which include another fmt.
void log_info(std::string_view line);
void log_warning(std::string_view line);
void log_error(std::string_view line);

}  // namespace ddprun
