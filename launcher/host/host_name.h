#pragma once

#include <string>

namespace ddprun::launcher {

/// What this host calls itself; "unknown" if the kernel does not say.
std::string host_name();

}  // namespace ddprun::launcher
