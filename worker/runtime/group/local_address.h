#pragma once

#include <string>

namespace ddprun::ddp {

/// The address of this host, as a number, by which it reaches MASTER_ADDR and so can be reached by the other
/// ranks. An address of this host's own is its own answer. Asks the routing table, and the resolver if
/// master_addr is a name; sends nothing.
///
/// Of a name that stands for several addresses the first with a route counts: of other hosts' before
/// loopback, which Debian gives to a host's own name, and IPv4 before IPv6, so that all hosts choose the
/// same.
///
/// throws  UsageError naming MASTER_ADDR if it is unknown or there is no route to it
std::string local_address_towards(const std::string& master_addr);

/// True for "localhost" and loopback addresses as text.
bool is_loopback(const std::string& address);

}  // namespace ddprun::ddp
