#pragma once

#include <string>
#include <string_view>

namespace ddprun {

/// Text of unknown origin, such as a path, as part of a message of one line: control characters, line ends
/// among them, become '?'; tabs stay.
std::string one_line(std::string_view text);

}  // namespace ddprun
