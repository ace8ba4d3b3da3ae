#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

inline constexpr std::size_t kMacSize = 32;  ///< bytes of an HMAC-SHA256
inline const std::vector<const char*> kLibcryptoNames{"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};

/// HMAC-SHA256 (RFC 2104) by libcrypto, loaded at the first call (docs/decisions/0009-libcrypto.md).
///
/// returns        kMacSize bytes
/// throws         LaunchError(kOwnFailure) as require_libcrypto()
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Takes the same time wherever the texts differ, so a MAC cannot be guessed byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Checks early that libcrypto can be loaded.
///
/// names     to try in order, for tests
/// throws    LaunchError(kOwnFailure) saying what to install, if it is missing or unsuitable
void require_libcrypto(const std::vector<const char*>& names = kLibcryptoNames);

// The bytes between a node and the coordinator. Each side sends its greeting at once, then messages in
// frames:
//
//   payload's length (32 bits, big-endian) | payload | MAC (kMacSize bytes), only with a token
//   MAC = HMAC-SHA256(key, frame's number in its direction (64 bits, big-endian) | payload)
//   key = HMAC-SHA256(token, "ddprun node" or "ddprun coordinator" | node's nonce | coordinator's nonce)
//
// so changed, repeated, missing and reflected frames, and frames from other connections, are rejected. Only
// the token is secret.

inline constexpr int kProtocolVersion = 3;

/// The first thing each side sends, in kGreetingSize bytes: magic, version, flags, nonce, zeros.
struct Greeting {
  bool authenticated = false;             ///< has a token: every frame carries a MAC
  std::array<unsigned char, 16> nonce{};  ///< random
  bool operator==(const Greeting&) const = default;
};
inline constexpr std::size_t kGreetingSize = 32;

/// throws    std::system_error if the kernel provides no random bytes
Greeting make_greeting(bool authenticated);

std::string encode(const Greeting& greeting);

/// bytes     may continue after the greeting
/// throws    ProtocolError if these are not a whole greeting of a ddprun with our version of the protocol
Greeting decode_greeting(std::string_view bytes);

/// Whether these first bytes can become a greeting of any version: recognises strangers at once.
bool may_be_greeting(std::string_view begin);

enum class Side { kNode, kCoordinator };

/// What a connection's keys are derived from.
struct SessionSecrets {
  std::string token;  ///< any bytes; empty: no MAC
  Greeting node, coordinator;
};

/// Frames the messages that one side sends, in order.
class FrameWriter {
 public:
  /// throws    ProtocolError if only one side has a token; LaunchError as hmac_sha256()
  FrameWriter(Side from, const SessionSecrets& secrets);

  /// payload   at most kMaxMessage bytes
  std::string frame(std::string_view payload);

 private:
  std::string key_;  ///< empty: no MAC
  std::uint64_t count_ = 0;
};

/// Unpacks the frames that one side sent.
class FrameReader {
 public:
  /// throws    as FrameWriter
  FrameReader(Side from, const SessionSecrets& secrets);

  /// Bytes as they arrived, in pieces of any size.
  void feed(std::string_view bytes);

  /// The payload of the next complete frame. Call it after each feed() until it returns nullopt; then less
  /// than one frame is buffered.
  ///
  /// throws    ProtocolError if the frame is too long or its MAC is wrong, and on every later call
  std::optional<std::string> next();

 private:
  Side from_;
  std::string key_;  ///< empty: no MAC
  std::uint64_t count_ = 0;
  std::string buffer_;
  std::size_t begin_ = 0;  ///< of the unread bytes
};

}  // namespace ddprun::launcher
