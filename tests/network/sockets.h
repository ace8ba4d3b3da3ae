#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include <ddprun/common/files.h>

// TCP by hand, for tests. They throw std::runtime_error with the address and the reason.
namespace ddprun::test {

using AddressInfo = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

inline AddressInfo tcp_address(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list) != 0)
    throw std::runtime_error(address + " is not an address");
  return {list, ::freeaddrinfo};
}

[[noreturn]] inline void socket_error(const char* what, const std::string& address, int port, int error) {
  throw std::runtime_error(std::string(what) + " " + address + " port " + std::to_string(port) + ": " +
                           std::strerror(error));
}

/// Port 0: one that is free.
inline UniqueFd listen_at(const std::string& address, int port = 0) {
  const AddressInfo info = tcp_address(address, port);
  UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || ::listen(fd.get(), 16) != 0)
    socket_error("listen at", address, port, errno);
  return fd;
}

inline int port_of(const UniqueFd& socket) {
  sockaddr_in6 address{};  // the port of IPv4 lies at the same place
  socklen_t size = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin6_port);
}

inline UniqueFd connect_to(const std::string& address, int port,
                           std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
  const AddressInfo info = tcp_address(address, port);
  UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0 && errno != EINPROGRESS)
    socket_error("connect to", address, port, errno);
  pollfd writable{fd.get(), POLLOUT, 0};
  if (::poll(&writable, 1, static_cast<int>(deadline.count())) != 1)
    socket_error("connect to", address, port, ETIMEDOUT);
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) socket_error("connect to", address, port, error);
  ::fcntl(fd.get(), F_SETFL, 0);
  return fd;
}

}  // namespace ddprun::test
