#pragma once

#include <string>
#include <string_view>

namespace ddprun::serialize {

/// Text of unknown origin for a message: in quotes, in ASCII without control characters, cut when it is long.
std::string in_quotes(std::string_view text);

}  // namespace ddprun::serialize
