#include "launcher/host/reserved_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "launcher/host/launch_error.h"
#include "launcher/host/port_owner.h"

namespace ddprun::launcher {
namespace {

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  void set_port(int port) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&bytes);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&bytes);
    (bytes.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port) = htons(static_cast<in_port_t>(port));
  }
  int port() const {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bytes);
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bytes);
    return ntohs(bytes.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
  }
};

/// An address in figures; all interfaces for a name, which only others have to look up.
Address to_address(const std::string& text) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return to_address("::");
  Address address;
  address.size = list->ai_addrlen;
  std::memcpy(&address.bytes, list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  return address;
}

/// A socket of our own; none and errno if the address or its port cannot be had.
UniqueFd bind_reusable(const Address& address) {
  UniqueFd fd(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return {};
  if (address.bytes.ss_family == AF_INET6)
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

[[noreturn]] void fail(const std::string& where, int port, int error) {
  const bool taken = error == EADDRINUSE && port != 0;
  throw LaunchError(LaunchError::kOwnFailure,
                    "cannot reserve " + (port == 0 ? "a free port" : "port " + std::to_string(port)) +
                        " on " + where + ": " + std::strerror(error) + (taken ? port_owner(port) : "") +
                        (taken ? " (--master-port; left out, a free one is found)" : ""));
}

}  // namespace

ReservedPort::ReservedPort(const std::string& where, std::optional<int> wanted) {
  Address address = to_address(where);
  address.set_port(wanted.value_or(0));
  held_ = bind_reusable(address);
  for (const char* any : {"::", "0.0.0.0"}) {
    if (held_ || (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)) break;
    address = to_address(any);
    address.set_port(wanted.value_or(0));
    held_ = bind_reusable(address);
  }
  if (!held_) fail(where, wanted.value_or(0), errno);
  if (::getsockname(held_.get(), reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0)
    fail(where, 0, errno);
  number_ = address.port();
  for_rank0_ = bind_reusable(address);
  if (!for_rank0_) fail(where, number_, errno);
}

}  // namespace ddprun::launcher
