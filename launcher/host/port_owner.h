#pragma once

#include <optional>
#include <string>

#include <ddprun/common/held_port.h>

namespace ddprun::launcher {

/// " by process PID (NAME)" of a process that listens on this TCP port, if there is one that we may see; else
/// nothing. Looks at every process: for rare moments.
std::string port_owner(int port);

/// Reserves the port that is wanted, or a free one. throws LaunchError naming the port, and who has it
HeldPort reserve_port(const std::string& address, std::optional<int> wanted);

}  // namespace ddprun::launcher
