#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun {

/// A new round of a job whose lost ranks ddprun restarts alone (--recover=rank). The surviving ranks get it
/// through DDPRUN_ROUND_FD, a SOCK_SEQPACKET socket, as a packet of JSON:
///   {"round": 1, "restart_count": 1, "master_addr": "127.0.0.1", "master_port": 40001, "lost": [1]}
/// Rank 0's packet also carries a socket bound to the port, to listen on. A program that can do this writes
/// {"recovers": true, "stands_by": false} there before the first loss, and "recovers": false once it no
/// longer can.
struct RoundNotice {
  int round = 0;          ///< 1 for the first
  int restart_count = 0;  ///< of the new round
  std::string master_addr;
  int master_port = 0;
  std::vector<int> lost;  ///< the ranks being replaced, of the receiver's node
};

/// Sends the notice without waiting. store_fd: a socket to send along; -1: none. False if the receiver is
/// gone or does not read.
bool send_notice(int fd, const RoundNotice& notice, int store_fd);

struct ReceivedNotice {
  RoundNotice notice;
  UniqueFd store;  ///< the socket that came along, if any
};

/// The next notice, without waiting; nullopt if there is none. Drops other packets.
std::optional<ReceivedNotice> receive_notice(int fd);

/// What a program says about itself.
struct Abilities {
  bool recovers = false;   ///< it can continue when another rank is lost
  bool stands_by = false;  ///< it supports DDPRUN_STANDBY_FD (standby.h)
};

/// Tells ddprun. Does not wait.
void send_abilities(int fd, const Abilities& abilities);

/// What the program has said last since the previous call; nullopt: nothing. Drops other packets.
std::optional<Abilities> receive_abilities(int fd);

}  // namespace ddprun
