#include <ddprun/common/held_port.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace ddprun {
namespace {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  in_port_t& port() {
    return bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port;
  }
};

/// All interfaces if it is a name, which only others have to look up.
SocketAddress to_address(const std::string& text, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return to_address("::", port);
  SocketAddress address;
  address.size = list->ai_addrlen;
  std::memcpy(&address.bytes, list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  address.port() = htons(static_cast<in_port_t>(port));
  return address;
}

/// An invalid descriptor and errno if the address or its port is not available.
UniqueFd bind_reusable(const SocketAddress& address) {
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

}  // namespace

HeldPort::HeldPort(const std::string& where, int wanted) : address(where) {
  const auto check = [&](bool ok) {
    if (!ok) throw std::system_error(errno, std::generic_category(), "a port of " + where);
  };
  const auto is_absent = [](int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; };
  SocketAddress all = to_address("::", wanted);  // also IPv4
  held_ = bind_reusable(all);
  if (!held_ && is_absent(errno)) held_ = bind_reusable(all = to_address("0.0.0.0", wanted));
  check(static_cast<bool>(held_));
  check(::getsockname(held_.get(), reinterpret_cast<sockaddr*>(&all.bytes), &all.size) == 0);
  port = ntohs(all.port());
  socket = bind_reusable(to_address(where, port));
  if (!socket && is_absent(errno)) socket = bind_reusable(all);
  check(static_cast<bool>(socket));
}

WorkerEnv env_of_rank(const HeldPort& port, int rank, int size) {
  WorkerEnv env;
  env.rank = env.local_rank = env.role_rank = rank;
  env.world_size = env.local_world_size = env.role_world_size = size;
  env.master_addr = port.address;
  env.master_port = port.port;
  return env;
}

}  // namespace ddprun
