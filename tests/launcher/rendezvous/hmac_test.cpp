#include "launcher/rendezvous/protocol.h"

#include "launcher/events/launch_error.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;

TEST_CASE("the HMAC is that of RFC 4231", "[hmac]") {
  struct Row {
    std::string key, message, mac;  // mac: hex
  };
  std::string counting;
  for (char byte = 1; byte <= 25; ++byte) counting += byte;
  const std::string long_key(131, '\xaa');
  const Row rows[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::string(50, '\xcd'), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(20, '\x0c'), "Test With Truncation", "a3b6167473100ee06e0c796c2955552b"},
      {long_key, "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {long_key,
       "This is a test using a larger than block-size key and a larger than block-size data. The key needs "
       "to be "
       "hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Row& row : rows) {
    INFO(row.message);
    const std::string mac = hmac_sha256(row.key, row.message);
    CHECK(mac.size() == kMacSize);
    CHECK(test::hex(mac).substr(0, row.mac.size()) == row.mac);
  }
}

TEST_CASE("every byte of a key and of a message counts", "[hmac]") {
  const auto with_nul = [](const char* end) { return std::string("to\0ken\n", 7) + end; };
  CHECK(hmac_sha256(with_nul("a"), "text") != hmac_sha256(with_nul("b"), "text"));
  CHECK(hmac_sha256("key", with_nul("a")) != hmac_sha256("key", with_nul("b")));
  CHECK(test::hex(hmac_sha256("key", "")) ==
        "5d5d139563c95b5967b9bd9a8c9b233a9dedb45072794cd232dc1b74832607d0");
  CHECK(test::hex(hmac_sha256({}, {})) == "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST_CASE("texts are equal in all of their bytes and in size", "[hmac]") {
  CHECK(equal_in_constant_time("abc", "abc"));
  CHECK(equal_in_constant_time("", ""));
  CHECK_FALSE(equal_in_constant_time("abc", "abd"));
  CHECK_FALSE(equal_in_constant_time("xbc", "abc"));
  CHECK_FALSE(equal_in_constant_time("abc", "ab"));
}

TEST_CASE("a missing libcrypto is one line that says what to install", "[hmac]") {
  const auto message_of = [](const std::vector<const char*>& names) -> std::string {
    try {
      require_libcrypto(names);
    } catch (const LaunchError& error) {
      CHECK(error.exit_code == LaunchError::kOwnFailure);
      return error.what();
    }
    return "";
  };
  CHECK_THAT(message_of({"libcrypto.so.none", "libcrypto.so.neither"}),
             ContainsSubstring("a token needs OpenSSL's libcrypto (Debian: libssl3)") &&
                 ContainsSubstring("libcrypto.so.none") && ContainsSubstring("libcrypto.so.neither") &&
                 !ContainsSubstring("\n"));
  CHECK_THAT(message_of({"libcrypto.so.none", "libc.so.6"}),
             ContainsSubstring("a token needs OpenSSL's libcrypto 1.1 or 3"));
  CHECK_NOTHROW(require_libcrypto());
}

}  // namespace
}  // namespace ddprun::launcher
