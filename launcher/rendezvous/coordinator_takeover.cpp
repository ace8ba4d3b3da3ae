#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>
#include <set>

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
  return former_.number >= 0 && 2 * returned() > former_members().size();
}

/// Whether the other part of a split network may continue without this one, also once these nodes have gone.
bool Coordinator::in_minority(const std::set<NodeId>& leaving) const {
  const auto is_minority = [&](const std::vector<NodeId>& voters, int next_round) {
    const auto here = std::ranges::count_if(voters, [&](NodeId id) {
      const auto node = nodes_.find(id);
      if (node == nodes_.end()) return id == kBegun;
      return !leaving.contains(id) || node->second.begun >= next_round;  // then remove() puts kBegun
    });
    return 2 * static_cast<std::size_t>(here) < voters.size();
  };
  return settings_.has_successors &&
         (is_minority(voters_, INT_MAX) || std::ranges::any_of(former_voters_, [&](const auto& former) {
            return is_minority(former.second, former.first);
          }));
}

/// Whether the nodes that stay are enough for another coordinator, which counts the last round's without this
/// coordinator's own. A node that only stood by has no vote.
bool Coordinator::others_have_majority(std::optional<NodeId> own) const {
  std::size_t others = 0, staying_others = 0;
  for (const NodeId id : voters_) {
    if (id == own) continue;
    const auto node = nodes_.find(id);
    ++others;
    if (node != nodes_.end() && !node->second.leaves) ++staying_others;
  }
  const bool counts_own = own && nodes_.contains(*own) && !nodes_.at(*own).leaves;
  return staying() - (counts_own ? 1 : 0) >= others_needed() &&
         (!has_started() || 2 * staying_others > others);
}

/// All workers start again under another coordinator. returns empty: it can be
std::string Coordinator::why_not_hand_over(const std::string& id) const {
  const auto found = by_id_.find(id);
  const auto own = found == by_id_.end() ? std::nullopt : std::optional(found->second);
  if (!elastic() && phase_ == Phase::kRunning && unfinished_ < members_.size())
    return "ranks that have finished would run again";
  if (own && !can_do_without(*own)) return "the job has too few nodes";
  if (!others_have_majority(own))
    return "no more than half of the last round's other nodes would be left to take the coordinator over: "
           "wait until the next round has begun";
  return "";
}

/// The others' workers end at once, before they miss this node's.
bool Coordinator::hand_over(const std::string& id, int signal, const std::string& reason, Time now) {
  const auto own = by_id_.find(id);
  if (!settings_.has_successors || ended_ || resigned_ || hands_over_at_ ||
      (!has_started() && former_.number < 0) || !why_not_hand_over(id).empty())
    return false;
  if (own != by_id_.end()) std::erase(voters_, own->second);  // the others do not count it
  hands_over_at_ = now + std::min<Clock::duration>(settings_.node_timeout / kBeatsPerTimeout, kMoreLeave);
  without_others_ = {exit_code_of_signal(signal), reason, false, signal};
  if (phase_ == Phase::kStopping) pause_end_ = now + pause_;
  stop_round(reason + kAnother, std::chrono::milliseconds(0), /*dump_stacks=*/false, signal);
  if (own != by_id_.end()) let_go(own->second, {exit_code_of_signal(signal), reason}, signal, now);
  return true;
}

/// Nodes that are told to stop look for the next endpoint's coordinator, as after a loss.
void Coordinator::finish_handover(Time now) {
  if (!others_have_majority({}))
    return end(without_others_.exit_code, without_others_.reason, /*dump_stacks=*/false,
               without_others_.user_signal);
  const auto pause = std::chrono::ceil<std::chrono::milliseconds>(pause_end_ - now).count();
  const Handover handover{left_, restart_count_, restarts_used_,
                          static_cast<int>(std::max<std::int64_t>(pause, 0))};
  for (const NodeId id : voters_)
    if (nodes_.contains(id))
      send(id, Stop{round_, without_others_.reason + kAnother, false, handover, without_others_.user_signal});
  resigned_ = true;
}

}  // namespace ddprun::launcher
