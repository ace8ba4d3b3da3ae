#include <ddprun/group/held_port.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include <ddprun/common/errors.h>

namespace ddprun::ddp {

HeldPort::HeldPort(const std::string& where) : address(where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  ensure(::getaddrinfo(where.c_str(), "0", &hints, &list) == 0, "an address as a number");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  socket.reset(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), list->ai_addr, &list->ai_addrlen) != 0)
    throw std::system_error(errno, std::generic_category(), "a port of " + where);
  port = ntohs(list->ai_family == AF_INET ? reinterpret_cast<sockaddr_in*>(list->ai_addr)->sin_port
                                          : reinterpret_cast<sockaddr_in6*>(list->ai_addr)->sin6_port);
}

WorkerEnv env_of_rank(const HeldPort& port, int rank, int size) {
  WorkerEnv env;
  env.rank = env.local_rank = env.role_rank = rank;
  env.world_size = env.local_world_size = env.role_world_size = size;
  env.master_addr = port.address;
  env.master_port = port.port;
  return env;
}

}  // namespace ddprun::ddp
