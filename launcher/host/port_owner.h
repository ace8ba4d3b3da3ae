#pragma once

#include <string>

namespace ddprun::launcher {

/// " by process PID (NAME)" of a process that listens on this TCP port, if there is one that we may see; else
/// nothing. Looks at every process: for rare moments.
std::string port_owner(int port);

}  // namespace ddprun::launcher
