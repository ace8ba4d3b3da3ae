#include <ddprun/common/round_notice.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <ddprun/common/packet.h>

namespace ddprun {

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

}  // namespace ddprun
