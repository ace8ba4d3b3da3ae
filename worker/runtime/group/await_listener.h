#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::ddp {

/// Waits until somebody listens at host:port, by connecting and hanging up. A TCPStore client that comes
/// before its host sleeps for half a second or more before it tries again; this looks again within
/// milliseconds.
///
/// returns  true once somebody listens; false when the time is over or the host has no such address
bool await_listener(const std::string& host, std::uint16_t port, std::chrono::milliseconds at_most);

}  // namespace ddprun::ddp
