#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The other side's bytes break the protocol, or are not signed with our token. One line.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kMaxMessage = 16384;  ///< bytes of one message's payload
inline constexpr std::size_t kMaxName = 1024;      ///< bytes of a name or address in it

// A message is a JSON object. "type" names the message; its other fields are named as in message.h. How a
// node's part of the round failed is "kind" and its fields:
//   exited {exit_code}, killed {signal, core_dumped}, hang, timeout, signal {signal}, start_failed
//   {exit_code}

/// The message as JSON of at most kMaxMessage bytes. Invalid UTF-8 becomes U+FFFD, and long strings are cut.
/// Numbers are not checked: the other side does that.
std::string encode(const NodeMessage& message);
std::string encode(const CoordinatorMessage& message);

/// Trusts nothing: checks the ranges of numbers, and the length and UTF-8 of strings. Every field is
/// required; unknown ones are ignored. Strings may hold control characters: show them through printable() or
/// quoted().
///
/// throws    ProtocolError naming the message and field, what was expected and what it got
NodeMessage decode_node_message(std::string_view json);
CoordinatorMessage decode_coordinator_message(std::string_view json);

}  // namespace ddprun::launcher
