#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <vector>

#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// The addresses that an endpoint's host stands for, in the system's order. A name is looked up in a thread
/// of its own: nobody has to wait for a name server, which may take a minute to fail.
///
/// throws  std::runtime_error naming the host, with the system's reason
boost::asio::awaitable<std::vector<boost::asio::ip::tcp::endpoint>> resolve(Endpoint endpoint);

}  // namespace ddprun::launcher
