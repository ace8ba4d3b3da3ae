#pragma once

#include <string>

namespace ddprun::ddp {

/// This host's numeric address towards MASTER_ADDR, at which the other ranks can reach it. Asks the routing
/// table, and the resolver if master_addr is a name; sends nothing.
///
/// If a name has several addresses, takes the first with a route, loopback last, because Debian gives it to a
/// host's own name, and IPv4 before IPv6, so that all hosts choose the same one.
///
/// throws  UsageError naming MASTER_ADDR if it is unknown or has no route
std::string local_address_towards(const std::string& master_addr);

/// True for "localhost" and loopback addresses as text.
bool is_loopback(const std::string& address);

}  // namespace ddprun::ddp
