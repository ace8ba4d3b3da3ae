#include <ddprun/group/store.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::ddp::wait_for_port;
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

TEST_CASE("wait_for_port sees a host that is there, and gives up on one that is not", "[wait_for_port]") {
  const Bound host;
  CHECK_FALSE(wait_for_port("127.0.0.1", host.port, 20ms));
  REQUIRE(::listen(host.fd.get(), 8) == 0);
  CHECK(wait_for_port("127.0.0.1", host.port, 20s));
  CHECK(wait_for_port("localhost", host.port, 20s));
  CHECK_FALSE(wait_for_port("no.such.host.invalid", host.port, 20s));
}

TEST_CASE("wait_for_port ends once the caller gives up", "[wait_for_port]") {
  const Bound host;
  int asked = 0;
  CHECK_FALSE(wait_for_port("127.0.0.1", host.port, 60s, [&] { return ++asked == 3; }));
  CHECK(asked == 3);
}

TEST_CASE("wait_for_port tries often at first, then less and less often", "[wait_for_port]") {
  const Bound host;
  int most = 0;
  for (int tries = 0; tries < 20 && most < 15; ++tries) {  // other processes may lengthen the pauses
    int attempts = 0;
    CHECK_FALSE(wait_for_port("127.0.0.1", host.port, 500ms, [&] { return ++attempts < 0; }));
    most = std::max(most, attempts);
  }
  CHECK(most >= 15);  // pauses that double would allow 11
  CHECK(most <= 40);
}

TEST_CASE("wait_for_port waits for a host that comes later", "[wait_for_port]") {
  const Bound host;
  auto found = std::async(std::launch::async, [&] { return wait_for_port("127.0.0.1", host.port, 60s); });
  CHECK(found.wait_for(20ms) == std::future_status::timeout);
  REQUIRE(::listen(host.fd.get(), 8) == 0);
  CHECK(found.get());
}
