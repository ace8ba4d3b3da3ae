#pragma once

#include <string>

namespace ddprun {

/// The name of this host; "unknown" if the kernel does not say.
std::string host_name();

}  // namespace ddprun
