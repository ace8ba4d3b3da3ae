#include <ddprun/common/held_port.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <system_error>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

/// A stranger that listens on a port of 127.0.0.2.
struct Stranger {
  explicit Stranger(int wanted = 0) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(wanted));
    ::inet_pton(AF_INET, "127.0.0.2", &address.sin_addr);
    socklen_t size = sizeof address;
    listens = ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
              ::listen(socket.get(), 1) == 0;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  UniqueFd socket;
  bool listens = false;
  int port = 0;
};

TEST_CASE("a port that is taken on any address is taken", "[held_port]") {
  const Stranger stranger;
  REQUIRE(stranger.listens);
  CHECK_THROWS_AS(HeldPort("127.0.0.1", stranger.port), std::system_error);
  CHECK_THROWS_AS(HeldPort("::1", stranger.port), std::system_error);
}

TEST_CASE("a held port is kept from programs on all addresses", "[held_port]") {
  const HeldPort port;
  CHECK_FALSE(Stranger(port.port).listens);
}

TEST_CASE("rank 0 listens on the address that was asked for, or as PyTorch does on all", "[held_port]") {
  const HeldPort port("127.0.0.1");
  sockaddr_in address{};
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(port.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  CHECK(address.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
  const UniqueFd all(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!all) return;  // no IPv6 here
  const int on = 1;
  ::setsockopt(all.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<in_port_t>(port.port));
  CHECK(::bind(all.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
  CHECK(::listen(all.get(), 1) == 0);
}

}  // namespace
}  // namespace ddprun
