#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun {

/// One packet of a SOCK_SEQPACKET socket: text and descriptors (SCM_RIGHTS).
struct Packet {
  std::string text;
  std::vector<UniqueFd> fds;
};

/// Sends a packet without waiting; at most 16 descriptors. False if the receiver is gone or does not read.
bool send_packet(int fd, const std::string& text, const std::vector<int>& fds = {});

enum class Wait { kNo, kYes };

/// The next packet, cut after 64 KiB. nullopt if there is none or the sender is gone.
std::optional<Packet> receive_packet(int fd, Wait wait = Wait::kNo);

}  // namespace ddprun
