#include "launcher/rendezvous/protocol.h"

#include <set>

#include "tests/support/catch.h"
#include "tests/support/hex.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Payloads = std::vector<std::string>;

Greeting greeting(bool authenticated, unsigned char seed) {
  Greeting made;
  made.authenticated = authenticated;
  made.nonce.fill(seed);
  return made;
}

SessionSecrets secrets(const std::string& token) {
  return {token, greeting(!token.empty(), 1), greeting(!token.empty(), 2)};
}

const std::string kToken("to\0ken\n", 7);

/// All frames that the reader has.
Payloads take(FrameReader& reader) {
  Payloads payloads;
  while (auto payload = reader.next()) payloads.push_back(std::move(*payload));
  return payloads;
}

/// What a reader of these secrets makes of the bytes; a ProtocolError goes out.
Payloads read_all(const std::string& bytes, const SessionSecrets& secrets, Side from = Side::kNode) {
  FrameReader reader(from, secrets);
  reader.feed(bytes);
  return take(reader);
}

std::string decoding_error(std::string_view bytes) {
  try {
    decode_greeting(bytes);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a greeting comes back as it was", "[protocol]") {
  for (const bool authenticated : {false, true}) {
    const Greeting sent = make_greeting(authenticated);
    CHECK(sent.authenticated == authenticated);
    CHECK(encode(sent).size() == kGreetingSize);
    CHECK(decode_greeting(encode(sent)) == sent);
    CHECK(decode_greeting(encode(sent) + "more") == sent);
  }
  CHECK(test::hex(encode(greeting(true, 0xab))) ==
        "64647072756e0d0a"
        "0003"
        "0001"
        "abababababababababababababababab"
        "00000000");
}

TEST_CASE("no two greetings are alike", "[protocol]") {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(encode(make_greeting(true)));
  CHECK(seen.size() == 100);
}

TEST_CASE("strangers are known by their first bytes, and shown", "[protocol]") {
  CHECK(decoding_error("HTTP/1.1 400 Bad Request, as you are no browser\r\n\r\n") ==
        "expected a greeting from ddprun, got 'HTTP/1.1 400 Bad Requ...'");
  CHECK(decoding_error("\x16\x03\x01\x1b[31m\xff") == "expected a greeting from ddprun, got '???\?'");
  CHECK(decoding_error("SSH-2.0-x\r\n") == "expected a greeting from ddprun, got 'SSH-2.0-x'");
  CHECK(decoding_error("\r\n") == "expected a greeting from ddprun, got ''");
  CHECK(decoding_error("") == "expected a greeting from ddprun, got nothing");
  for (const char* stranger : {"G", "HTTP/1.1 400", "\x16", "ddprum", "ddprun\n"})
    CHECK_FALSE(may_be_greeting(stranger));
}

TEST_CASE("a greeting may be one from its first byte on, and is one when it is whole", "[protocol]") {
  const std::string bytes = encode(make_greeting(true));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK(may_be_greeting(bytes.substr(0, size)));
    CHECK_THROWS_AS(decode_greeting(bytes.substr(0, size)), ProtocolError);
  }
  CHECK(may_be_greeting(bytes + "more"));
  CHECK(decoding_error(bytes.substr(0, 20)) == "expected a greeting of 32 bytes from ddprun, got 20");
}

TEST_CASE("another version of the protocol is refused, and both are named", "[protocol]") {
  std::string bytes = encode(make_greeting(true));
  bytes[8] = 1;
  bytes[9] = 4;
  CHECK(may_be_greeting(bytes));
  CHECK(decoding_error(bytes) ==
        "expected version 3 of the protocol between ddpruns, got 260: every node needs the same ddprun");
}

TEST_CASE("frames come back in their order, however their bytes are divided", "[protocol]") {
  const Payloads payloads{"first", "", std::string("\0\xff\n", 3), std::string(kMaxMessage, 'x'), "last"};
  for (const std::string& token : {std::string(), kToken}) {
    for (const Side from : {Side::kNode, Side::kCoordinator}) {
      FrameWriter writer(from, secrets(token));
      std::string bytes;
      for (const std::string& payload : payloads) bytes += writer.frame(payload);
      for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{1000}, bytes.size()}) {
        FrameReader reader(from, secrets(token));
        Payloads got;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
          reader.feed(std::string_view(bytes).substr(at, piece));
          for (std::string& payload : take(reader)) got.push_back(std::move(payload));
        }
        CHECK(got == payloads);
      }
    }
  }
}

TEST_CASE("a frame is as the documentation says", "[protocol]") {
  CHECK(test::hex(FrameWriter(Side::kNode, secrets("")).frame("abc")) == "00000003616263");
  const std::string nonces = std::string(16, '\1') + std::string(16, '\2');
  for (const auto& [side, label] :
       {std::pair{Side::kNode, "ddprun node"}, {Side::kCoordinator, "ddprun coordinator"}}) {
    const std::string key = hmac_sha256(kToken, label + nonces);
    FrameWriter writer(side, secrets(kToken));
    CHECK(writer.frame("abc").substr(7) == hmac_sha256(key, std::string(8, '\0') + "abc"));
    CHECK(writer.frame("abc").substr(7) == hmac_sha256(key, std::string(7, '\0') + "\1" + "abc"));
  }
}

TEST_CASE("a frame that is not whole is none yet", "[protocol]") {
  for (const std::string& token : {std::string(), kToken}) {
    const std::string bytes = FrameWriter(Side::kNode, secrets(token)).frame("payload");
    for (std::size_t size = 0; size < bytes.size(); ++size)
      CHECK(read_all(bytes.substr(0, size), secrets(token)).empty());
    CHECK(read_all(bytes, secrets(token)) == Payloads{"payload"});
  }
}

TEST_CASE("a frame that is too long is refused by its length alone", "[protocol]") {
  for (const std::string& token : {std::string(), kToken}) {
    CHECK(read_all(std::string("\0\0\x40\0", 4), secrets(token)).empty());
    CHECK_THROWS_WITH(read_all(std::string("\0\0\x40\1", 4), secrets(token)),
                      "expected a message of at most 16384 bytes, got one of 16385");
    CHECK_THROWS_WITH(read_all("GET / HTTP/1.1", secrets(token)), ContainsSubstring("got one of 1195725856"));
    CHECK_THROWS_AS(FrameWriter(Side::kNode, secrets(token)).frame(std::string(kMaxMessage + 1, 'x')),
                    std::logic_error);
  }
}

TEST_CASE("with a token, no byte of a frame can be changed", "[protocol]") {
  const std::string bytes = FrameWriter(Side::kNode, secrets(kToken)).frame("payload");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bits : {1, 2, 128}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ bits);
      INFO(at << " " << bits);
      // A length that has become greater is refused once its bytes are there.
      CHECK_THROWS_AS(read_all(changed + std::string(kMaxMessage, 'x'), secrets(kToken)), ProtocolError);
    }
  }
}

TEST_CASE("with a token, frames cannot be sent again, swapped or left out", "[protocol]") {
  FrameWriter writer(Side::kNode, secrets(kToken));
  const std::string first = writer.frame("first"), second = writer.frame("second"),
                    third = writer.frame("third");
  CHECK(read_all(first + second + third, secrets(kToken)).size() == 3);
  CHECK_THROWS_WITH(read_all(first + first, secrets(kToken)),
                    "a message from the node was changed in transit");
  CHECK_THROWS_AS(read_all(second + first, secrets(kToken)), ProtocolError);
  CHECK_THROWS_AS(read_all(first + third, secrets(kToken)), ProtocolError);
}

TEST_CASE("with a token, frames cannot be sent back or into another connection", "[protocol]") {
  const std::string bytes = FrameWriter(Side::kNode, secrets(kToken)).frame("payload");
  CHECK_THROWS_AS(read_all(bytes, secrets(kToken), Side::kCoordinator), ProtocolError);
  SessionSecrets other_node = secrets(kToken), other_coordinator = secrets(kToken), swapped = secrets(kToken);
  other_node.node.nonce[15] = 9;
  other_coordinator.coordinator.nonce[0] = 9;
  std::swap(swapped.node, swapped.coordinator);
  for (const SessionSecrets& other : {other_node, other_coordinator, swapped})
    CHECK_THROWS_AS(read_all(bytes, other), ProtocolError);
}

TEST_CASE("a frame of another token is refused, and the token is named", "[protocol]") {
  for (const std::string& token : {std::string("token"), kToken + "x", std::string("to\0kem\n", 7)}) {
    const std::string bytes = FrameWriter(Side::kCoordinator, secrets(token)).frame("payload");
    CHECK_THROWS_WITH(
        read_all(bytes, secrets(kToken), Side::kCoordinator),
        "a message from the coordinator is not signed with this token: expected the same one on every "
        "node (--token-file)");
  }
}

TEST_CASE("after a wrong frame nothing is read any more", "[protocol]") {
  FrameWriter writer(Side::kNode, secrets(kToken));
  std::string bytes = writer.frame("first");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  FrameReader reader(Side::kNode, secrets(kToken));
  reader.feed(bytes + writer.frame("second"));
  CHECK_THROWS_AS(reader.next(), ProtocolError);
  reader.feed(writer.frame("third"));
  CHECK_THROWS_AS(reader.next(), ProtocolError);
}

TEST_CASE("a token on one side only is told by the greetings", "[protocol]") {
  const SessionSecrets of_node{kToken, greeting(true, 1), greeting(false, 2)};
  const SessionSecrets of_coordinator{"", greeting(true, 1), greeting(false, 2)};
  for (const SessionSecrets& each : {of_node, of_coordinator}) {
    const char* message =
        "the node has a token, the coordinator has none: expected the same one on every node (--token-file)";
    CHECK_THROWS_WITH(FrameWriter(Side::kNode, each), message);
    CHECK_THROWS_WITH(FrameReader(Side::kCoordinator, each), message);
  }
  CHECK_THROWS_WITH(FrameWriter(Side::kNode, {"", greeting(false, 1), greeting(true, 2)}),
                    ContainsSubstring("the coordinator has a token, the node has none"));
  CHECK_THROWS_AS(FrameWriter(Side::kNode, {kToken, greeting(false, 1), greeting(false, 2)}),
                  std::logic_error);
  CHECK_THROWS_AS(FrameWriter(Side::kNode, {"", greeting(true, 1), greeting(true, 2)}), std::logic_error);
}

}  // namespace
}  // namespace ddprun::launcher
