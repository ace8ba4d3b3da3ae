#include <ddprun/common/recovery.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <ddprun/common/text.h>

namespace ddprun {
namespace {

constexpr std::size_t kMaxText = 1 << 16;
constexpr std::size_t kMaxFds = 16;

/// One packet of a SOCK_SEQPACKET socket: text and descriptors (SCM_RIGHTS).
struct Packet {
  std::string text;
  std::vector<UniqueFd> fds;
};

/// Room for the descriptors of one message.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
};

/// The next packet, cut after 64 KiB. nullopt if there is none or the sender is gone.
std::optional<Packet> receive_packet(int fd, bool wait = false) {
  Packet packet;
  packet.text.resize(kMaxText);
  iovec part{packet.text.data(), packet.text.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const int flags = MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT);
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

constexpr char kVariable[] = "DDPRUN_STANDBY_FD";
std::atomic<bool> called = false;
std::optional<std::chrono::steady_clock::time_point> ordered;

/// The socket; nullopt: the variable is not set, or left over from elsewhere.
std::optional<int> standby_fd() {
  const char* text = std::getenv(kVariable);
  const auto fd = text == nullptr ? std::nullopt : parse_integer(text, 0, 1 << 20);
  struct stat info {};
  return fd && ::fstat(*fd, &info) == 0 && S_ISSOCK(info.st_mode) ? fd : std::nullopt;
}

/// throws  nlohmann::json::exception for anything but an order
void obey(Packet packet) {
  const auto order = nlohmann::json::parse(packet.text);
  for (const auto& [name, value] : order.at("env").items())
    ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  const auto names = order.at("fds").get<std::vector<std::string>>();
  for (std::size_t i = 0; i < names.size() && i < packet.fds.size(); ++i) {
    if (const auto stream = parse_integer(names[i], 0, STDERR_FILENO))
      ::dup2(packet.fds[i].get(), *stream);
    else
      ::setenv(names[i].c_str(), std::to_string(packet.fds[i].release()).c_str(), 1);
  }
}

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

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundNotice, round, restart_count, master_addr, master_port, lost)

bool send_notice(int fd, const RoundNotice& notice, int store_fd) {
  return send_packet(fd, nlohmann::json(notice).dump(),
                     store_fd >= 0 ? std::vector{store_fd} : std::vector<int>());
}

std::optional<ReceivedNotice> receive_notice(int fd) {
  while (auto packet = receive_packet(fd)) try {
      return ReceivedNotice{nlohmann::json::parse(packet->text).get<RoundNotice>(),
                            packet->fds.empty() ? UniqueFd() : std::move(packet->fds[0])};
    } catch (const nlohmann::json::exception&) {  // not a notice
    }
  return std::nullopt;
}

void send_abilities(int fd, const Abilities& abilities) {
  send_packet(
      fd,
      nlohmann::ordered_json{{"recovers", abilities.recovers}, {"stands_by", abilities.stands_by}}.dump());
}

std::optional<Abilities> receive_abilities(int fd) {
  std::optional<Abilities> said;
  while (const auto packet = receive_packet(fd)) {
    const auto json = nlohmann::json::parse(packet->text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("recovers") || !json["recovers"].is_boolean()) continue;
    said = Abilities{json["recovers"].get<bool>(), json.value("stands_by", nlohmann::json()) == true};
  }
  return said;
}

bool send_order(int fd, const StandbyOrder& order) {
  nlohmann::json json{{"env", nlohmann::json::object()}, {"fds", nlohmann::json::array()}};
  for (const auto& [name, value] : order.env) json["env"][name] = value;
  std::vector<int> fds;
  for (const auto& [name, number] : order.fds) {
    json["fds"].push_back(name);
    fds.push_back(number);
  }
  if (!order.argv.empty()) json["argv"] = order.argv;
  try {
    return send_packet(fd, json.dump(), fds);
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    return false;
  }
}

bool stands_by() { return standby_fd().has_value(); }

bool has_order() {
  pollfd entry{standby_fd().value_or(-1), POLLIN, 0};
  return entry.fd < 0 || ::poll(&entry, 1, 0) != 0;
}

void stand_by() {
  called = true;
  const auto fd = standby_fd();
  if (!fd) return;
  auto packet = receive_packet(*fd, /*wait=*/true);
  if (!packet) std::_Exit(EXIT_SUCCESS);  // ddprun no longer needs this process
  ordered = std::chrono::steady_clock::now();
  ::unsetenv(kVariable);
  ::close(*fd);
  obey(std::move(*packet));
}

std::optional<std::chrono::steady_clock::time_point> became_worker() { return ordered; }

bool can_stand_by() { return called; }

}  // namespace ddprun
