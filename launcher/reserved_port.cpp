#include "launcher/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "launcher/launch_error.h"

namespace ddprun {
namespace {

[[noreturn]] void fail(int port, int error) {
  const std::string which = port == 0 ? "a free port" : "port " + std::to_string(port);
  throw LaunchError(
      LaunchError::kOwnFailure,
      "cannot reserve " + which + " on 127.0.0.1: " + std::strerror(error) +
          (error == EADDRINUSE && port != 0 ? " (--master-port; left out, a free one is found)" : ""));
}

UniqueFd bind_reusable(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail(port, errno);
  return fd;
}

int bound_port(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail(0, errno);
  return ntohs(address.sin_port);
}

}  // namespace

ReservedPort::ReservedPort(std::optional<int> wanted)
    : held_(bind_reusable(wanted.value_or(0))),
      number_(bound_port(held_.get())),
      for_rank0_(bind_reusable(number_)) {}

}  // namespace ddprun
