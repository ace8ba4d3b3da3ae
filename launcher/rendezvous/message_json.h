#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The bytes of the other side make no sense, or are not from who has the token. One line for people.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kMaxMessage = 16384;  ///< bytes of one message's payload
inline constexpr std::size_t kMaxName = 1024;      ///< bytes of a name or address in it

// A message is a JSON object. "type" names the message, every other field is called as in message.h. How a
// node's part of the round failed is "kind" with what belongs to it:
//   exited {exit_code}, killed {signal, core_dumped}, hang, timeout, signal {signal}, start_failed
//   {exit_code}

/// The message as JSON of at most kMaxMessage bytes. In strings, what is no UTF-8 is replaced by U+FFFD, and
/// what is too long is cut. Numbers out of range are left to the other side's refusal.
std::string encode(const NodeMessage& message);
std::string encode(const CoordinatorMessage& message);

/// Trusts nothing: numbers have ranges, strings have limits and are UTF-8, no field may be missing. Fields
/// that are unknown here are ignored. Strings are kept as they are, control characters included: whoever
/// shows one to people does so through printable() or quoted().
///
/// throws    ProtocolError naming the message and the field, what was expected and what was got
NodeMessage decode_node_message(std::string_view json);
CoordinatorMessage decode_coordinator_message(std::string_view json);

}  // namespace ddprun::launcher
