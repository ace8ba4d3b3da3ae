#include "launcher/rendezvous/listen.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "launcher/events/launch_error.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using boost::asio::ip::tcp;

tcp::endpoint at(const std::string& address, int port) {
  return {boost::asio::ip::make_address(address), static_cast<unsigned short>(port)};
}

/// Listens at 127.0.0.1, on a port that nobody has.
struct Other {
  Other() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd.get(), 1) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  UniqueFd fd;
  int port = 0;
};

TEST_CASE("one address that another program has makes the endpoint taken", "[listen]") {
  const Other other;
  const std::vector<tcp::endpoint> addresses = {at("127.0.0.2", other.port), at("127.0.0.1", other.port)};
  const Listening found = listen_at({"127.0.0.2", other.port}, addresses, false);
  CHECK(found.taken);
  CHECK(found.sockets.empty());
  CHECK_THROWS_AS(listen_at({"127.0.0.2", other.port}, addresses, true), LaunchError);
}

TEST_CASE("an address listed twice gets one socket", "[listen]") {
  int port = 0;
  { port = Other().port; }
  const Listening found =
      listen_at({"localhost", port}, {at("127.0.0.1", port), at("127.0.0.1", port)}, true);
  CHECK(found.sockets.size() == 1);
}

TEST_CASE("a required address of no interface means all interfaces", "[listen]") {
  int port = 0;
  { port = Other().port; }
  const std::vector<tcp::endpoint> outside = {at("192.0.2.1", port)};  // of documentation
  CHECK(listen_at({"192.0.2.1", port}, outside, false).sockets.empty());
  const Listening found = listen_at({"192.0.2.1", port}, outside, true);
  CHECK(found.at_any_address);
  CHECK_FALSE(found.sockets.empty());
}

}  // namespace
}  // namespace ddprun::launcher
