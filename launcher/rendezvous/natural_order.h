#pragma once

#include <string_view>

namespace ddprun::launcher {

/// True if a comes before b as people count: "node2" before "node10". Runs of digits compare as numbers, of
/// any length; where only zeros in front differ, fewer of them come first. A strict weak order.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace ddprun::launcher
