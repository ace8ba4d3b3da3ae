#pragma once

#include <cstddef>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/round_notice.h>

namespace ddprun::launcher {

/// The sockets through which ddprun announces new rounds to workers (--recover=rank): DDPRUN_ROUND_FD.
class RoundChannels {
 public:
  /// Opens a worker's channel, and closes that of an earlier worker in its place. returns the worker's end,
  /// to close once it has inherited it. throws std::system_error
  UniqueFd open(std::size_t index);

  /// What this worker, or an earlier one in its place, last reported.
  const Abilities& abilities(std::size_t index);

  /// store_fd  for rank 0, to listen on; -1: none
  void tell(std::size_t index, const RoundNotice& notice, int store_fd);

 private:
  struct Channel {
    UniqueFd ours;
    Abilities said;
  };
  std::vector<Channel> channels_;
};

}  // namespace ddprun::launcher
