#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/rendezvous/message_json.h"

namespace ddprun::launcher {

// The bytes between a node and the coordinator. Each side sends its greeting at once, then messages in
// frames:
//   payload's length (32 bits, big-endian) | payload | MAC (kMacSize bytes), only with a token
//   MAC = HMAC-SHA256(key of the direction, the frame's number in its direction (64 bits, big-endian) |
//   payload) key = HMAC-SHA256(token, "ddprun node" or "ddprun coordinator" | node's nonce | coordinator's
//   nonce)
// so that a frame that is changed, sent again, left out or sent back, or is of another connection, is
// refused. Nothing is secret but the token.

inline constexpr int kProtocolVersion = 1;

/// What either side sends first, in kGreetingSize bytes: magic, version, flags, nonce, zeros.
struct Greeting {
  bool authenticated = false;             ///< it has a token, and every frame carries a MAC
  std::array<unsigned char, 16> nonce{};  ///< random
  bool operator==(const Greeting&) const = default;
};
inline constexpr std::size_t kGreetingSize = 32;

/// throws    std::system_error if the kernel has no random bytes
Greeting make_greeting(bool authenticated);

std::string encode(const Greeting& greeting);

/// bytes     the first that came; those behind the greeting are not looked at
/// throws    ProtocolError if that is no ddprun, not all of a greeting, or another version of the protocol
Greeting decode_greeting(std::string_view bytes);

/// The first bytes can still become a greeting, of whatever version: strangers are known at once.
bool may_be_greeting(std::string_view begin);

enum class Side { kNode, kCoordinator };

/// What the keys of one connection are made of.
struct SessionSecrets {
  std::string token;  ///< any bytes; empty: no MAC
  Greeting node, coordinator;
};

/// Makes frames of the messages that one side sends, in their order.
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

/// Takes the messages that one side sent out of its frames.
class FrameReader {
 public:
  /// throws    as FrameWriter
  FrameReader(Side from, const SessionSecrets& secrets);

  /// Bytes as they came, however they are divided.
  void feed(std::string_view bytes);

  /// The payload of the next frame that is complete. To be called after each feed() until there is none: then
  /// less than one frame is kept.
  ///
  /// throws    ProtocolError if the frame is too long, at once, or its MAC is wrong; from then on each time
  std::optional<std::string> next();

 private:
  Side from_;
  std::string key_;  ///< empty: no MAC
  std::uint64_t count_ = 0;
  std::string buffer_;
  std::size_t begin_ = 0;  ///< of what is not taken yet
};

}  // namespace ddprun::launcher
