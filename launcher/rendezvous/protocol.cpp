#include "launcher/rendezvous/protocol.h"

#include <dlfcn.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

// The part of OpenSSL's headers that we use, so that building does not need them. The ABI is the same from
// 1.0 to 3.
using Digest = struct evp_md_st;
using Sha256Function = const Digest*();
using HmacFunction = unsigned char*(const Digest*, const void* key, int key_size,
                                    const unsigned char* message, std::size_t message_size,
                                    unsigned char* mac, unsigned* mac_size);
using CompareFunction = int(const void*, const void*, std::size_t);

/// The functions of libcrypto, which is never unloaded because it has exit handlers.
struct Libcrypto {
  explicit Libcrypto(const std::vector<const char*>& names) {
    void* library = nullptr;
    std::string problems;
    for (const char* name : names) {
      library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (library != nullptr) break;
      problems += (problems.empty() ? "" : "; ") + std::string(::dlerror());
    }
    if (library == nullptr) fail("(Debian: libssl3): " + problems);
    load(library, sha256, "EVP_sha256");
    load(library, hmac, "HMAC");
    load(library, compare, "CRYPTO_memcmp");
  }

  Sha256Function* sha256 = nullptr;
  HmacFunction* hmac = nullptr;
  CompareFunction* compare = nullptr;

 private:
  [[noreturn]] static void fail(const std::string& what) {
    throw LaunchError(LaunchError::kOwnFailure, "a token needs OpenSSL's libcrypto " + what);
  }

  template <typename Function>
  static void load(void* library, Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr) fail(std::string("1.1 or 3 (Debian: libssl3): the one found has no ") + name);
  }
};

const Libcrypto& libcrypto() {
  static const Libcrypto loaded(kLibcryptoNames);
  return loaded;
}

constexpr std::string_view kMagic = "ddprun\r\n";
constexpr std::size_t kVersionAt = 8, kFlagsAt = 10, kNonceAt = 12;
constexpr std::uint64_t kAuthenticated = 1;  // the only flag
constexpr std::size_t kLengthSize = 4;
constexpr std::size_t kMaxGreetingShown = 24;  // bytes of a stranger's, in a message

std::string big_endian(std::uint64_t number, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = size; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

std::string_view text_of(const Greeting& greeting) {
  return {reinterpret_cast<const char*>(greeting.nonce.data()), greeting.nonce.size()};
}

const char* name_of(Side side) { return side == Side::kNode ? "node" : "coordinator"; }

/// The key of a direction; empty without a token.
std::string key_of(Side from, const SessionSecrets& secrets) {
  if (secrets.node.authenticated != secrets.coordinator.authenticated) {
    const bool node_has = secrets.node.authenticated;
    throw ProtocolError(std::string("the ") + name_of(node_has ? Side::kNode : Side::kCoordinator) +
                        " has a token, the " + name_of(node_has ? Side::kCoordinator : Side::kNode) +
                        " has none: expected the same one on every node (--token-file)");
  }
  ensure(secrets.node.authenticated != secrets.token.empty(), "a greeting says whether there is a token");
  if (secrets.token.empty()) return "";
  std::string label = std::string("ddprun ") + name_of(from);
  label += text_of(secrets.node);
  label += text_of(secrets.coordinator);
  return hmac_sha256(secrets.token, label);
}

std::string mac_of(const std::string& key, std::uint64_t number, std::string_view payload) {
  return hmac_sha256(key, big_endian(number, sizeof number).append(payload));
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view message) {
  const Libcrypto& crypto = libcrypto();
  const char* key_bytes = key.empty() ? "" : key.data();  // null would mean "no key"
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  std::string mac(kMacSize, '\0');
  auto* out = reinterpret_cast<unsigned char*>(mac.data());
  if (crypto.hmac(crypto.sha256(), key_bytes, static_cast<int>(key.size()), bytes, message.size(), out,
                  nullptr) == nullptr)
    throw LaunchError(LaunchError::kOwnFailure, "OpenSSL's libcrypto cannot compute an HMAC-SHA256");
  return mac;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && libcrypto().compare(a.data(), b.data(), a.size()) == 0;
}

void require_libcrypto(const std::vector<const char*>& names) { Libcrypto{names}; }

Greeting make_greeting(bool authenticated) {
  Greeting greeting;
  greeting.authenticated = authenticated;
  const ssize_t count = TEMP_FAILURE_RETRY(::getrandom(greeting.nonce.data(), greeting.nonce.size(), 0));
  // This few bytes arrive at once or not at all.
  if (count != static_cast<ssize_t>(greeting.nonce.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return greeting;
}

std::string encode(const Greeting& greeting) {
  std::string bytes(kMagic);
  bytes += big_endian(kProtocolVersion, kFlagsAt - kVersionAt);
  bytes += big_endian(greeting.authenticated ? kAuthenticated : 0, kNonceAt - kFlagsAt);
  bytes += text_of(greeting);
  bytes.resize(kGreetingSize, '\0');
  return bytes;
}

Greeting decode_greeting(std::string_view bytes) {
  if (bytes.empty()) throw ProtocolError("expected a greeting from ddprun, got nothing");
  if (!may_be_greeting(bytes)) {
    const auto line = bytes.substr(0, bytes.find_first_of("\r\n"));
    throw ProtocolError("expected a greeting from ddprun, got " +
                        single_quoted(shortened(std::string(line), kMaxGreetingShown)));
  }
  if (bytes.size() < kGreetingSize)
    throw ProtocolError("expected a greeting of " + std::to_string(kGreetingSize) +
                        " bytes from ddprun, got " + std::to_string(bytes.size()));
  const auto version = big_endian(bytes.substr(kVersionAt, kFlagsAt - kVersionAt));
  if (version != kProtocolVersion)
    throw ProtocolError("expected version " + std::to_string(kProtocolVersion) +
                        " of the protocol between ddpruns, got " + std::to_string(version) +
                        ": every node needs the same ddprun");
  Greeting greeting;
  greeting.authenticated = (big_endian(bytes.substr(kFlagsAt, kNonceAt - kFlagsAt)) & kAuthenticated) != 0;
  std::copy_n(bytes.begin() + kNonceAt, greeting.nonce.size(), greeting.nonce.begin());
  return greeting;
}

bool may_be_greeting(std::string_view begin) {
  const auto size = std::min(begin.size(), kMagic.size());
  return begin.substr(0, size) == kMagic.substr(0, size);
}

FrameWriter::FrameWriter(Side from, const SessionSecrets& secrets) : key_(key_of(from, secrets)) {}

std::string FrameWriter::frame(std::string_view payload) {
  ensure(payload.size() <= kMaxMessage, "a message fits into a frame");
  std::string bytes = big_endian(payload.size(), kLengthSize).append(payload);
  if (!key_.empty()) bytes += mac_of(key_, count_++, payload);
  return bytes;
}

FrameReader::FrameReader(Side from, const SessionSecrets& secrets)
    : from_(from), key_(key_of(from, secrets)) {}

void FrameReader::feed(std::string_view bytes) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_ += bytes;
}

std::optional<std::string> FrameReader::next() {
  const auto rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < kLengthSize) return std::nullopt;
  const auto length = big_endian(rest.substr(0, kLengthSize));
  if (length > kMaxMessage)
    throw ProtocolError("expected a message of at most " + std::to_string(kMaxMessage) +
                        " bytes, got one of " + std::to_string(length));
  const std::size_t mac_size = key_.empty() ? 0 : kMacSize;
  if (rest.size() < kLengthSize + length + mac_size) return std::nullopt;
  const auto payload = rest.substr(kLengthSize, length);
  if (mac_size != 0) {
    const auto mac = rest.substr(kLengthSize + length, mac_size);
    if (!equal_in_constant_time(mac, mac_of(key_, count_, payload)))
      throw ProtocolError(
          std::string("a message from the ") + name_of(from_) +
          (count_ == 0 ? " is not signed with this token: expected the same one on every node (--token-file)"
                       : " was changed in transit"));
    ++count_;
  }
  begin_ += kLengthSize + length + mac_size;
  return std::string(payload);
}

}  // namespace ddprun::launcher
