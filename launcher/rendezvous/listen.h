#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <vector>

#include <ddprun/common/unique_fd.h>
#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// Where the coordinator of this node listens.
struct Listening {
  std::vector<UniqueFd> sockets;  ///< one an address; none: another process is to be spoken to
  bool taken = false;             ///< it is on this host
  bool loopback_only = false;     ///< nobody else's host can reach it
  /// What other nodes have to be told instead of what the endpoint's name stands for here: a host's own name
  /// is often one for 127.0.1.1. Empty: nothing.
  std::string instead;
};

/// Listens on those of the endpoint's addresses that are this host's, if any is.
///
/// addresses  of the endpoint's host
/// must       this node is the one that listens: if it cannot, that is an error; else a port that is taken is
///            that of a ddprun which was faster
/// throws     LaunchError naming the endpoint, and who has the port if that can be seen
Listening listen_at(const Endpoint& endpoint, const std::vector<boost::asio::ip::tcp::endpoint>& addresses,
                    bool must);

/// "localhost", or an address that only this host has.
bool is_loopback(const std::string& host);

}  // namespace ddprun::launcher
