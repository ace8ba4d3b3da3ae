#include "launcher/rendezvous/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include <ddprun/common/host_name.h>

namespace ddprun::launcher {
namespace {

/// "::1", "fe80::1%eth0"
bool is_ipv6(const std::string& text) {
  const auto zone = text.find('%');
  if (zone != std::string::npos && zone + 1 == text.size()) return false;
  in6_addr address;
  return ::inet_pton(AF_INET6, text.substr(0, zone).c_str(), &address) == 1;
}

bool is_name(const std::string& text) {
  constexpr std::size_t kLongestName = 255;
  return !text.empty() && text.size() <= kLongestName &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return c < 128 && (std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_');
         });
}

std::optional<int> parse_port_number(const std::string& text) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stopped != end || port < 1 || port > 65535) return {};
  return port;
}

/// The host name without its domain.
std::string first_label(const std::string& host) { return host.substr(0, host.find('.')); }

bool is_own_address(const std::string& text) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = list; entry != nullptr && !found; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    char own[INET6_ADDRSTRLEN] = "";
    found = address != nullptr && ::inet_ntop(family, address, own, sizeof own) != nullptr && text == own;
  }
  ::freeifaddrs(list);
  return found;
}

}  // namespace

std::optional<std::string> parse_host(const std::string& text) {
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  const std::string host = brackets ? text.substr(1, text.size() - 2) : text;
  if (is_ipv6(host) || (!brackets && is_name(host))) return host;
  return {};
}

std::optional<Endpoint> parse_endpoint(const std::string& text, int default_port) {
  if (const auto host = parse_host(text)) return Endpoint{*host, default_port};
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return {};
  const std::string before = text.substr(0, colon);
  const auto host = parse_host(before);
  const auto port = parse_port_number(text.substr(colon + 1));
  const bool bare_ipv6 = before.find(':') != std::string::npos && before.front() != '[';
  if (!host || !port || bare_ipv6) return {};
  return Endpoint{*host, *port};
}

bool is_this_host(const std::string& name) {
  const bool brackets = name.size() > 2 && name.front() == '[' && name.back() == ']';
  const std::string host = brackets ? name.substr(1, name.size() - 2) : name;
  if (host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0) return true;
  const std::string own = host_name();
  if (!host.empty() && (host == own || first_label(host) == first_label(own))) return true;
  return is_own_address(host);
}

std::string to_string(const Endpoint& endpoint) {
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace ddprun::launcher
