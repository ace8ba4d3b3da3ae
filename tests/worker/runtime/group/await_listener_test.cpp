#include <ddprun/group/await_listener.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::ddp::await_listener;
using namespace std::chrono_literals;

namespace {

/// A socket of a free port of the loopback address, which nobody listens at yet.
struct Bound {
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;

  Bound() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
};

}  // namespace

TEST_CASE("await_listener sees a host that is there, and gives up on one that is not", "[await_listener]") {
  const Bound host;
  CHECK_FALSE(await_listener("127.0.0.1", host.port, 20ms));
  REQUIRE(::listen(host.fd.get(), 8) == 0);
  CHECK(await_listener("127.0.0.1", host.port, 20s));
  CHECK(await_listener("localhost", host.port, 20s));
  CHECK_FALSE(await_listener("no.such.host.invalid", host.port, 20s));
}

TEST_CASE("await_listener waits for a host that comes later", "[await_listener]") {
  const Bound host;
  auto found = std::async(std::launch::async, [&] { return await_listener("127.0.0.1", host.port, 60s); });
  CHECK(found.wait_for(20ms) == std::future_status::timeout);
  REQUIRE(::listen(host.fd.get(), 8) == 0);
  CHECK(found.get());
}
