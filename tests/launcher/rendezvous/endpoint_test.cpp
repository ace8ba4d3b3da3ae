#include "launcher/rendezvous/endpoint.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("an endpoint is a host, with or without a port", "[endpoint]") {
  const auto [text, host, port] = GENERATE(table<std::string, std::string, int>({
      {"localhost", "localhost", 29400},
      {"localhost:1", "localhost", 1},
      {"node-1.rack_2.example:65535", "node-1.rack_2.example", 65535},
      {"10.0.0.1", "10.0.0.1", 29400},
      {"10.0.0.1:29500", "10.0.0.1", 29500},
      {"::1", "::1", 29400},
      {"::", "::", 29400},
      {"2001:db8::5:2950", "2001:db8::5:2950", 29400},
      {"fe80::1%eth0", "fe80::1%eth0", 29400},
      {"::ffff:10.0.0.1", "::ffff:10.0.0.1", 29400},
      {"[::1]", "::1", 29400},
      {"[::1]:1", "::1", 1},
      {"[fe80::1%eth0]:29500", "fe80::1%eth0", 29500},
      {std::string(255, 'a'), std::string(255, 'a'), 29400},
  }));
  INFO(text);
  CHECK(parse_endpoint(text, 29400) == Endpoint{host, port});
}

TEST_CASE("an invalid endpoint gives none", "[endpoint]") {
  const std::string text = GENERATE(values<std::string>({"",
                                                         ":",
                                                         ":1",
                                                         "host:",
                                                         "host:0",
                                                         "host:65536",
                                                         "host:abc",
                                                         "host:-1",
                                                         "host:+1",
                                                         "host: 1",
                                                         "host:1x",
                                                         "host:99999999999",
                                                         "[::1",
                                                         "::1]",
                                                         "[::1]:",
                                                         "[::1]:0",
                                                         "[::1]x",
                                                         "[::1]1",
                                                         "[]",
                                                         "[]:1",
                                                         "[host]:1",
                                                         "[[::1]]:1",
                                                         "a:b:c",
                                                         "host:1:2",
                                                         "::1::",
                                                         "1:2:3",
                                                         "2001:db8::5:29500",
                                                         "ho st",
                                                         "host\n",
                                                         "host/x:1",
                                                         "tcp://host",
                                                         "h,i",
                                                         "[::1%]:1",
                                                         "::1%",
                                                         "[::1]:1:2",
                                                         "h\xc3\xb6st",
                                                         std::string(256, 'a'),
                                                         std::string("a\0b", 3)}));
  INFO(text);
  CHECK_FALSE(parse_endpoint(text, 29400));
}

TEST_CASE("a host alone has no port", "[endpoint]") {
  CHECK(parse_host("node1") == "node1");
  CHECK(parse_host("[::1]") == "::1");
  CHECK(parse_host("::1") == "::1");
  for (const char* text : {"", "node1:1", "[::1]:1", "[node1]", "no de"}) CHECK_FALSE(parse_host(text));
}

TEST_CASE("an endpoint as text is read as itself", "[endpoint]") {
  CHECK(to_string({"host", 1}) == "host:1");
  CHECK(to_string({"::1", 29400}) == "[::1]:29400");
  for (const char* text : {"host:7", "10.0.0.1:7", "[2001:db8::5]:7"})
    CHECK(to_string(parse_endpoint(text, 1).value()) == text);
}

}  // namespace
}  // namespace ddprun::launcher
