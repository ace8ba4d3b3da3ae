#include <algorithm>
#include <cstdint>

#include "launcher/rendezvous/coordinator.h"

// How a coordinator takes the place of another one, and hands its own over.

namespace ddprun::launcher {
namespace {

constexpr Coordinator::NodeId kNobody = SIZE_MAX;

}  // namespace

/// Takes the place of the coordinator that a node has lost.
void Coordinator::go_on_after(const FormerRound& former, Time now) {
  if (has_started() || former.number <= former_.number) return;
  if (phase_ == Phase::kLeading) abandon_round(now);
  former_ = former;
  round_ = former.number;
  const int for_the_lost_node = elastic() || settings_.spares > 0 ? 0 : 1;
  restart_count_ = former.restarts + for_the_lost_node;
  restarts_used_ = former.restarts_used + for_the_lost_node;
}

/// The nodes of the lost coordinator's last round, without its own if that has ended; kNobody for those
/// missing here. A node that has returned counts once.
std::vector<Coordinator::NodeId> Coordinator::former_members() const {
  std::map<int, NodeId> by_rank;
  bool ended = false;
  for (const auto& [id, node] : nodes_) {
    if (node.join.former.number != former_.number) continue;
    by_rank[node.join.former.group_rank] = id;
    ended = ended || node.join.former.nobody_listens;
  }
  std::vector<NodeId> members;
  for (const auto& [rank, id] : by_rank) members.push_back(id);
  members.resize(std::max(members.size(), static_cast<std::size_t>(former_.nodes - (ended ? 1 : 0))),
                 kNobody);
  return members;
}

std::size_t Coordinator::returned() const {
  const auto members = former_members();
  return members.size() - static_cast<std::size_t>(std::count(members.begin(), members.end(), kNobody));
}

bool Coordinator::has_majority() const {
  return former_.number >= 0 && 2 * returned() > former_members().size();
}

/// Whether the other part of a split network may continue without this one.
bool Coordinator::in_minority() const {
  const auto is_minority = [this](const std::vector<NodeId>& voters) {
    const auto here = std::ranges::count_if(voters, [this](NodeId id) { return nodes_.contains(id); });
    return 2 * static_cast<std::size_t>(here) < voters.size();
  };
  return settings_.has_successors &&
         (is_minority(voters_) || std::ranges::any_of(former_voters_, [&](const auto& former) {
            return beats_ - former.first < kBeatsToLoss && is_minority(former.second);
          }));
}

/// For the next endpoint's coordinator, nodes that are told to stop look as after a loss.
bool Coordinator::hand_over(const std::string& id, const std::string& reason) {
  const auto own = by_id_.find(id);
  const bool needed = !elastic() && own != by_id_.end() && is_needed(own->second);
  if (!settings_.has_successors || needed || ended_ || resigned_ || (!has_started() && former_.number < 0))
    return false;
  stop_round(reason + ", and another one takes its place", std::chrono::milliseconds(0));
  resigned_ = true;
  return true;
}

}  // namespace ddprun::launcher
