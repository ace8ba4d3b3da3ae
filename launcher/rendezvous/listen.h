#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/held_port.h>
#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// How this node listens as the coordinator.
struct Listening {
  std::vector<UniqueFd> sockets;  ///< one per address; none: another process is the coordinator
  bool taken = false;             ///< by another process on this host
  bool loopback_only = false;     ///< other hosts cannot reach it
  bool at_any_address = false;    ///< no interface has the endpoint's address, as behind NAT
  /// The address to give other nodes if the endpoint's name resolves to a loopback address here, as a host's
  /// own name often does (127.0.1.1); else empty.
  std::string advertised;
  int port = 0;  ///< only of listen_at_free_port()
};

/// Listens on those of the endpoint's addresses that belong to this host; if it is required and none does, on
/// all interfaces.
///
/// addresses  of the endpoint's host
/// required   failing to listen is an error; otherwise a port in use means that another ddprun was faster
/// throws     LaunchError naming the endpoint, and the port's owner if visible
Listening listen_at(const Endpoint& endpoint, const std::vector<boost::asio::ip::tcp::endpoint>& addresses,
                    bool required);

/// Listens at a free port of this host's address; of all interfaces, if it is a name, or no interface has it.
/// throws LaunchError
Listening listen_at_free_port(const std::string& host);

/// An address of this host that others can reach, IPv4 if there is one; empty: none.
std::string outward_address();

/// Whether it is "localhost" or a loopback address.
bool is_loopback(const std::string& host);

/// " by process PID (NAME)" for a visible process that listens on this TCP port, else "". Slow.
std::string port_owner(int port);

/// Reserves the wanted port, or a free one. throws LaunchError naming the port and its owner
HeldPort reserve_port(const std::string& address, std::optional<int> wanted);

}  // namespace ddprun::launcher
