#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun {

/// Turns a process that stands by (ddprun --standby) into a worker. It arrives through DDPRUN_STANDBY_FD, a
/// SOCK_SEQPACKET socket, as a packet of JSON plus descriptors:
///   {"env": {"RANK": "1", ...}, "fds": ["0", "1", "2", "DDPRUN_ROUND_FD"]}
/// A descriptor replaces the standard stream of that number, or its number is the variable's value.
struct StandbyOrder {
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, int>> fds;
};

/// Does not wait. False if the process is gone, or if JSON cannot represent the values.
bool send_order(int fd, const StandbyOrder& order);

/// Whether this process has DDPRUN_STANDBY_FD; if so, load what every rank needs now, then call stand_by().
bool stands_by();

/// Whether stand_by() would not wait any more.
bool has_order();

/// Waits until ddprun makes this process a worker, and adopts its environment and standard streams; ends the
/// process if it is not needed. Returns at once in a process that is already a worker. Call it before reading
/// the environment and before starting threads that may read it.
void stand_by();

/// When stand_by() made this process a worker; nullopt: it started as one.
std::optional<std::chrono::steady_clock::time_point> became_worker();

/// Whether stand_by() was called, so that ddprun may start standby processes of this program.
bool can_stand_by();

}  // namespace ddprun
