#pragma once

#include <string>
#include <string_view>

namespace ddprun::report {

/// Text of unknown origin as it may stand in an element or between double quotes in an attribute: &, <, > and
/// both quotes escaped; bytes that are no UTF-8, and control characters other than tab and line end, become
/// U+FFFD.
std::string html_text(std::string_view text);

/// RFC 4648, section 4.
std::string base64(std::string_view bytes);

}  // namespace ddprun::report
