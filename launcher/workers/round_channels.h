#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <system_error>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/recovery.h>

namespace ddprun::launcher {

/// The sockets through which ddprun announces new rounds to workers (--recover=rank): DDPRUN_ROUND_FD.
class RoundChannels {
 public:
  /// Opens a worker's channel, and closes that of an earlier worker in its place. returns the worker's end,
  /// to close once it has inherited it. throws std::system_error
  UniqueFd open(std::size_t index) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
    if (channels_.size() <= index) channels_.resize(index + 1);
    abilities(index);  // reported by the earlier worker
    channels_[index].ours.reset(ends[0]);
    return UniqueFd(ends[1]);
  }

  /// What this worker, or an earlier one in its place, last reported, if anything.
  const std::optional<Abilities>& abilities(std::size_t index) {
    Channel& channel = channels_.at(index);
    if (channel.ours)
      if (const auto news = receive_abilities(channel.ours.get())) channel.said = news;
    return channel.said;
  }

  /// store_fd  for rank 0, to listen on; -1: none
  void tell(std::size_t index, const RoundNotice& notice, int store_fd) {
    send_notice(channels_.at(index).ours.get(), notice, store_fd);  // a missing worker is noticed anyway
  }

 private:
  struct Channel {
    UniqueFd ours;
    std::optional<Abilities> said;
  };
  std::vector<Channel> channels_;
};

}  // namespace ddprun::launcher
