#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

/// What makes a process that stands by (ddprun --standby) a worker. It comes through DDPRUN_STANDBY_FD, a
/// SOCK_SEQPACKET socket, as a packet of JSON with descriptors beside it:
///   {"env": {"RANK": "1", ...}, "fds": ["0", "1", "2", "DDPRUN_ROUND_FD"]}
/// A descriptor replaces the standard stream of that number, or its number is the variable's value.
struct StandbyOrder {
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, int>> fds;
};

/// Does not wait. False if the process is gone, or if JSON cannot hold the values.
bool send_order(int fd, const StandbyOrder& order);

/// Whether this process has DDPRUN_STANDBY_FD: load now what every rank needs, then call stand_by().
bool stands_by();

/// Waits until ddprun makes this process a worker, and takes its environment and standard streams; ends the
/// process if it is not needed. Returns at once in a process that is a worker already. Call it before the
/// environment is read and before there are threads that may read it.
void stand_by();

/// Whether stand_by() was called, so that ddprun may start processes of this program that stand by.
bool can_stand_by();

}  // namespace ddprun
