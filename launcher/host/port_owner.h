#pragma once

#include <optional>
#include <string>

#include <ddprun/common/held_port.h>

namespace ddprun::launcher {

/// " by process PID (NAME)" for a visible process that listens on this TCP port, else "". Slow.
std::string port_owner(int port);

/// Reserves the wanted port, or a free one. throws LaunchError naming the port and its owner
HeldPort reserve_port(const std::string& address, std::optional<int> wanted);

}  // namespace ddprun::launcher
