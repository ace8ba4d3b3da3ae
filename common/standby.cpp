#include <ddprun/common/standby.h>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include <ddprun/common/packet.h>
#include <ddprun/common/text.h>

namespace ddprun {
namespace {

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

bool send_order(int fd, const StandbyOrder& order) {
  nlohmann::json json{{"env", nlohmann::json::object()}, {"fds", nlohmann::json::array()}};
  for (const auto& [name, value] : order.env) json["env"][name] = value;
  std::vector<int> fds;
  for (const auto& [name, number] : order.fds) {
    json["fds"].push_back(name);
    fds.push_back(number);
  }
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
  auto packet = receive_packet(*fd, Wait::kYes);
  if (!packet) std::_Exit(EXIT_SUCCESS);  // ddprun no longer needs this process
  ordered = std::chrono::steady_clock::now();
  ::unsetenv(kVariable);
  ::close(*fd);
  obey(std::move(*packet));
}

std::optional<std::chrono::steady_clock::time_point> became_worker() { return ordered; }

bool can_stand_by() { return called; }

}  // namespace ddprun
