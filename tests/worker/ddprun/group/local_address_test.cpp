// What this needs of several hosts is in tests/network.
#include <ddprun/group/local_address.h>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/support/own_addresses.h"

using namespace ddprun;
using ddprun::ddp::is_loopback;
using ddprun::ddp::local_address_towards;
using ddprun::test::ContainsSubstring;

TEST_CASE("an address of this host is reached from itself", "[local_address]") {
  const auto addresses = test::own_addresses();
  REQUIRE(addresses.count("127.0.0.1") == 1);
  for (const std::string& address : addresses) {
    CAPTURE(address);
    CHECK(local_address_towards(address) == address);
  }
}

TEST_CASE("another loopback address, and localhost, are reached from loopback", "[local_address]") {
  CHECK(is_loopback(local_address_towards("127.0.0.3")));
  CHECK(is_loopback(local_address_towards("localhost")));
}

TEST_CASE("a master address that nobody can reach is refused by name", "[local_address]") {
  CHECK_THROWS_AS(local_address_towards("255.255.255.255"), UsageError);  // not for a single receiver
  CHECK_THROWS_WITH(
      local_address_towards("255.255.255.255"),
      ContainsSubstring("MASTER_ADDR: this host has no route to '255.255.255.255' (255.255.255.255: ") &&
          ContainsSubstring("GLOO_SOCKET_IFNAME"));
}

TEST_CASE("a master address that is none is refused by name", "[local_address]") {
  CHECK_THROWS_AS(local_address_towards("no..name"), UsageError);
  CHECK_THROWS_WITH(
      local_address_towards("no..name"),
      ContainsSubstring("MASTER_ADDR: expected the address or name of rank 0's host, got 'no..name': "));
}
