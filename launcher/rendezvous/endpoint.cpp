#include "launcher/rendezvous/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

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
  return !text.empty() && text.size() <= kLongestName && std::ranges::all_of(text, [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_');
  });
}

std::string without_brackets(const std::string& text) {
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  return brackets ? text.substr(1, text.size() - 2) : text;
}

/// The host name without its domain.
std::string first_label(const std::string& host) { return host.substr(0, host.find('.')); }

}  // namespace

std::optional<std::string> parse_host(const std::string& text) {
  const std::string host = without_brackets(text);
  if (is_ipv6(host) || (host == text && is_name(host))) return host;
  return {};
}

std::optional<std::vector<Endpoint>> parse_endpoints(const std::string& text, int default_port) {
  std::vector<Endpoint> endpoints;
  for (const std::string& word : split(text, ',')) {
    const auto endpoint = parse_endpoint(word, default_port);
    if (!endpoint || std::count(endpoints.begin(), endpoints.end(), *endpoint) > 0) return {};
    endpoints.push_back(*endpoint);
  }
  return endpoints;
}

std::optional<Endpoint> parse_endpoint(const std::string& text, int default_port) {
  if (const auto host = parse_host(text)) return Endpoint{*host, default_port};
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return {};
  const std::string before = text.substr(0, colon);
  const auto host = parse_host(before);
  const auto port = parse_integer(text.substr(colon + 1), 1, 65535);
  const bool bare_ipv6 = before.find(':') != std::string::npos && before.front() != '[';
  if (!host || !port || bare_ipv6) return {};
  return Endpoint{*host, *port};
}

bool is_this_host(const std::string& name) {
  const std::string host = without_brackets(name);
  if (host == "localhost") return true;
  const std::string own_name = host_name();
  if (!host.empty() && (host == own_name || first_label(host) == first_label(own_name))) return true;
  return is_own_address(host);
}

bool is_own_address(const std::string& text) {
  const std::string plain = text.substr(0, text.find('%'));
  if (plain == "::1" || plain.rfind("127.", 0) == 0) return true;
  const auto own = own_addresses();
  return std::any_of(own.begin(), own.end(),
                     [&](const OwnAddress& address) { return address.text == plain; });
}

std::string loopback_address() {
  const UniqueFd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Listing the interfaces takes a tenth of a job's start, so only where this fails.
  if (probe && ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return "127.0.0.1";
  const auto own = own_addresses();
  return std::ranges::find(own, "::1", &OwnAddress::text) != own.end() ? "::1" : "127.0.0.1";
}

bool leads_to_this_host(const std::string& name) {
  if (is_this_host(name)) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(without_brackets(name).c_str(), nullptr, &hints, &list) != 0) return false;
  bool found = false;
  for (const addrinfo* entry = list; entry != nullptr && !found; entry = entry->ai_next) {
    char text[NI_MAXHOST] = "";
    found = ::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
                0 &&
            is_own_address(text);
  }
  ::freeaddrinfo(list);
  return found;
}

std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    const void* address = nullptr;
    bool outward = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) {
      const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      outward = outward && !IN6_IS_ADDR_LINKLOCAL(&v6);
      address = &v6;
    }
    char text[INET6_ADDRSTRLEN] = "";
    if (address != nullptr && ::inet_ntop(family, address, text, sizeof text) != nullptr)
      found.push_back({text, outward});
  }
  ::freeifaddrs(list);
  return found;
}

std::string to_string(const Endpoint& endpoint) {
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace ddprun::launcher
