#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
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
  bool stands_by = false;  ///< it supports DDPRUN_STANDBY_FD
};

/// Tells ddprun. Does not wait.
void send_abilities(int fd, const Abilities& abilities);

/// What the program has said last since the previous call; nullopt: nothing. Drops other packets.
std::optional<Abilities> receive_abilities(int fd);

/// Turns a process that stands by (ddprun --standby) into a worker. It arrives through DDPRUN_STANDBY_FD, a
/// SOCK_SEQPACKET socket, as a packet of JSON plus descriptors:
///   {"env": {"RANK": "1", ...}, "fds": ["0", "1", "2", "DDPRUN_ROUND_FD"]}
/// A descriptor replaces the standard stream of that number, or its number is the variable's value.
struct StandbyOrder {
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, int>> fds;
  std::vector<std::string> argv = {};  ///< empty: as it is
};

/// Sends a packet of text and at most 16 descriptors (SCM_RIGHTS) without waiting. False if the receiver is
/// gone or does not read.
bool send_packet(int fd, const std::string& text, const std::vector<int>& fds = {});

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
