#include "launcher/workers/round_channels.h"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace ddprun::launcher {

UniqueFd RoundChannels::open(std::size_t index) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  if (channels_.size() <= index) channels_.resize(index + 1);
  abilities(index);  // reported by the earlier worker
  channels_[index].ours.reset(ends[0]);
  return UniqueFd(ends[1]);
}

const Abilities& RoundChannels::abilities(std::size_t index) {
  Channel& channel = channels_.at(index);
  if (channel.ours) channel.said = receive_abilities(channel.ours.get()).value_or(channel.said);
  return channel.said;
}

void RoundChannels::tell(std::size_t index, const RoundNotice& notice, int store_fd) {
  send_notice(channels_.at(index).ours.get(), notice, store_fd);  // a missing worker is noticed anyway
}

}  // namespace ddprun::launcher
