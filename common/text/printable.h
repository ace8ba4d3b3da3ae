#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// What one line of text shows when it cannot drive a terminal: colours (ESC [ ... m) are dropped; every
/// other control character, among them the C1 ones that UTF-8 has and those that turn the writing direction,
/// and every byte that is no UTF-8 become '?'. Tabs stay.
std::string printable(std::string_view line);

/// The lines of a text, each printable. A line that was written over with '\r', as progress bars are, shows
/// its last state; a '\r' before '\n' and empty lines at the end are dropped.
std::vector<std::string> printable_lines(std::string_view text);

/// At most max_bytes of a line, without a divided character, with "..." in place of what is left out.
std::string shortened(const std::string& line, std::size_t max_bytes);

/// The first and the last of many lines, with "... (N lines left out)" between them.
std::vector<std::string> first_and_last(std::vector<std::string> lines, std::size_t first, std::size_t last);

/// The text in lines of at most width columns, broken at spaces. A longer word has a line of its own.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);

/// The user's text inside a one-line message: no byte of it may break the line or drive the terminal.
std::string quoted(const std::string& text);

}  // namespace ddprun
