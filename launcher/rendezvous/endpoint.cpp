#include "launcher/rendezvous/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <charconv>

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

std::string to_string(const Endpoint& endpoint) {
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace ddprun::launcher
