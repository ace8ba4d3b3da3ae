#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The address of a server.
struct Endpoint {
  std::string host;  ///< a name or an address; IPv6 without brackets
  int port = 0;      ///< 1 to 65535
  bool operator==(const Endpoint&) const = default;
};

/// Reads "HOST", "HOST:PORT", "[V6]", "[V6]:PORT" or a bare IPv6 address such as "::1".
std::optional<Endpoint> parse_endpoint(const std::string& text, int default_port);

/// Reads one or more endpoints, separated by commas.
std::optional<std::vector<Endpoint>> parse_endpoints(const std::string& text, int default_port);

/// Reads "HOST", "[V6]" or "V6".
std::optional<std::string> parse_host(const std::string& text);

/// Whether this is the name or an address of this host, with or without brackets.
bool is_this_host(const std::string& name);

/// The same, or an alias that resolves to one of this host's addresses.
bool leads_to_this_host(const std::string& name);

/// Whether this is the address of one of this host's interfaces, including loopback.
bool is_own_address(const std::string& text);
/// 127.0.0.1, or ::1 on a host without it.
std::string loopback_address();

struct OwnAddress {
  std::string text;
  bool outward = false;  ///< reachable for others: on an interface that is up, not loopback or link-local
};

/// The addresses of this host's interfaces.
std::vector<OwnAddress> own_addresses();

/// "HOST:PORT", "[V6]:PORT"
std::string to_string(const Endpoint& endpoint);

}  // namespace ddprun::launcher
