#include <algorithm>
#include <cstdint>

#include "launcher/events/launch_error.h"
#include "launcher/rendezvous/coordinator.h"

// How a coordinator takes the place of another one, and hands its own over.

namespace ddprun::launcher {
namespace {

constexpr Coordinator::NodeId kNobody = SIZE_MAX;
constexpr const char* kAnother = ", and another one takes its place";
// Whoever ends one node may end another one with it: it has so long to tell.
constexpr std::chrono::milliseconds kMoreLeave{200};

}  // namespace

/// Takes the place of the coordinator that a node has lost.
void Coordinator::go_on_after(const FormerRound& former, Time now) {
  if (has_started() || former.number < 0 || former.number < former_.number) return;
  if (former.number > former_.number) {
    if (phase_ == Phase::kLeading) abandon_round(now);
    former_ = former;
    round_ = former.number;
  }
  // A handover may have reached some nodes only.
  former_.nodes = std::min(former_.nodes, former.nodes);
  former_.restarts = std::max(former_.restarts, former.restarts);
  former_.restarts_used = std::max(former_.restarts_used, former.restarts_used);
  pause_end_ = std::max(pause_end_, now + std::chrono::milliseconds(former.pause_ms.value_or(0)));
  const int for_the_lost_node = elastic() || settings_.spares > 0 ? 0 : 1;
  restart_count_ = former_.restarts + for_the_lost_node;
  restarts_used_ = former_.restarts_used + for_the_lost_node;
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
  const int others = std::max(former_.nodes - (ended ? 1 : 0), 0);
  members.resize(std::max(members.size(), static_cast<std::size_t>(others)), kNobody);
  return members;
}

std::size_t Coordinator::returned() const {
  const auto members = former_members();
  return members.size() - static_cast<std::size_t>(std::count(members.begin(), members.end(), kNobody));
}

bool Coordinator::has_majority() const {
  return settings_.elected || (former_.number >= 0 && 2 * returned() > former_members().size());
}

/// Whether the other part of a split network may continue without this one.
bool Coordinator::in_minority() const {
  const auto is_minority = [this](const std::vector<NodeId>& voters) {
    const auto here =
        std::ranges::count_if(voters, [this](NodeId id) { return id == kBegun || nodes_.contains(id); });
    return 2 * static_cast<std::size_t>(here) < voters.size();
  };
  return settings_.has_successors && !settings_.elected &&
         (is_minority(voters_) ||
          std::ranges::any_of(former_voters_, is_minority, &std::pair<int, std::vector<NodeId>>::second));
}

/// The others' workers end at once, before they miss this node's.
bool Coordinator::hand_over(const std::string& id, int signal, const std::string& reason, Time now) {
  const auto own = by_id_.find(id);
  const bool needed = !elastic() && own != by_id_.end() && is_needed(own->second);
  const std::size_t others = staying() - (own == by_id_.end() ? 0 : 1);
  if (!settings_.has_successors || needed || (others < others_needed() && !takes_over()) || ended_ ||
      resigned_ || hands_over_at_ || (!has_started() && former_.number < 0))
    return false;
  hands_over_at_ = now + std::min<Clock::duration>(settings_.node_timeout / kBeatsPerTimeout, kMoreLeave);
  without_others_ = {exit_code_of_signal(signal), reason, false, signal};
  if (phase_ == Phase::kStopping) pause_end_ = now + pause_;
  stop_round(reason + kAnother, std::chrono::milliseconds(0), /*dump_stacks=*/false, signal);
  if (own == by_id_.end()) return true;
  const auto node = nodes_.find(own->second);
  if (node->second.state != State::kInRound)
    remove(node, reason, now);
  else
    node->second.state = State::kLeaving;  // until its workers have ended, and its connection
  return true;
}

/// Nodes that are told to stop look for the next endpoint's coordinator, as after a loss.
void Coordinator::finish_handover(Time now) {
  if (staying() < others_needed() && !takes_over())  // others may still save
    return end(without_others_.exit_code, without_others_.reason, /*dump_stacks=*/false,
               without_others_.user_signal);
  const auto pause = std::chrono::ceil<std::chrono::milliseconds>(pause_end_ - now).count();
  stop_.hands_over = {restart_count_, restarts_used_, static_cast<int>(std::max<std::int64_t>(pause, 0))};
  if (handed_left_ != left_) tell_who_left();
  handed_left_ = left_;
  // Workers save, and the next coordinator would not wait for those of a node that leaves. Users may end more
  // nodes meanwhile. Each node ends its workers, or is lost.
  resigned_ = !is_held_up();
}

}  // namespace ddprun::launcher
