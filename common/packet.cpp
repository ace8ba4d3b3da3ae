#include <ddprun/common/packet.h>

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ddprun {
namespace {

constexpr std::size_t kMaxText = 1 << 16;
constexpr std::size_t kMaxFds = 16;

/// Room for the descriptors of one message.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
};

}  // namespace

bool send_packet(int fd, const std::string& text, const std::vector<int>& fds) {
  if (fds.size() > kMaxFds) return false;
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control;
  if (const std::size_t size = fds.size() * sizeof(int); size > 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), fds.data(), size);
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::optional<Packet> receive_packet(int fd, Wait wait) {
  Packet packet;
  packet.text.resize(kMaxText);
  iovec part{packet.text.data(), packet.text.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const int flags = MSG_CMSG_CLOEXEC | (wait == Wait::kNo ? MSG_DONTWAIT : 0);
  const ssize_t size = TEMP_FAILURE_RETRY(::recvmsg(fd, &message, flags));
  if (size <= 0) return std::nullopt;
  packet.text.resize(static_cast<std::size_t>(size));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return packet;
  std::vector<int> fds((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
  for (const int received : fds) packet.fds.emplace_back(received);
  return packet;
}

}  // namespace ddprun
