// The worker's choice of an address, on hosts with several.
#include <ddprun/group/local_address.h>

#include <ddprun/common/errors.h>
#include "tests/network/network.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// What the host finds towards "head", which stands for these addresses.
std::string address_towards_head(const Network& network, int host,
                                 const std::vector<std::string>& addresses) {
  std::string lines, found;
  for (const std::string& address : addresses) lines += address + " head\n";
  network.set_names(lines);
  network.run_on(host, [&] { found = ddp::local_address_towards("head"); });
  return found;
}

}  // namespace

TEST_CASE("of a name's addresses that of a host with a route counts, IPv4 first", "[local_address]") {
  const Network network(2);
  for (const int host : {0, 1}) {  // host 0 is the head itself
    const std::string v4 = Network::ipv4(host), v6 = Network::ipv6(host);
    CHECK(address_towards_head(network, host, {Network::ipv4(0)}) == v4);
    CHECK(address_towards_head(network, host, {Network::ipv6(0)}) == v6);
    CHECK(address_towards_head(network, host, {Network::ipv6(0), Network::ipv4(0)}) == v4);
    CHECK(address_towards_head(network, host, {"203.0.113.7", Network::ipv4(0), "198.51.100.7"}) == v4);
    CHECK(address_towards_head(network, host, {"203.0.113.7", "2001:db8::7", Network::ipv6(0)}) == v6);
    CHECK(address_towards_head(network, host, {"127.0.1.1", Network::ipv6(0)}) == v6);
    CHECK(ddp::is_loopback(address_towards_head(network, host, {"127.0.1.1"})));
  }
}

TEST_CASE("a name without an address that can be reached is refused with all of them", "[local_address]") {
  const Network network(1);
  CHECK_THROWS_WITH(address_towards_head(network, 0, {"203.0.113.7", "2001:db8::7"}),
                    "MASTER_ADDR: this host has no route to 'head' (203.0.113.7: Network is unreachable, "
                    "2001:db8::7: Network is unreachable); GLOO_SOCKET_IFNAME can name a network interface");
  CHECK_THROWS_AS(address_towards_head(network, 0, {}), UsageError);
}

TEST_CASE("a host of IPv6 alone takes a name's IPv6 address", "[local_address]") {
  const Network network(2, {.ipv4 = false, .slow = {}});
  CHECK(address_towards_head(network, 1, {Network::ipv4(0), Network::ipv6(0)}) == Network::ipv6(1));
}
