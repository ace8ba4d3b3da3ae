#include <algorithm>

#include <ddprun/common/text.h>
#include "launcher/rendezvous/admission.h"
#include "launcher/rendezvous/coordinator.h"

// How a node leaves the job by `ddpctl drain`, so that nothing is lost that its workers have done: under
// --recover=rank a spare takes its ranks; otherwise all workers save and end, and a round without it follows.

namespace ddprun::launcher {
namespace {

constexpr std::size_t kShortestId = 8;       // as ddpctl ps shows it
constexpr std::size_t kMostOfProblem = 500;  // bytes

std::string why_it_leaves(const std::string& node, const std::string& problem) {
  return node + " leaves the job: " + shortened(printable(problem), kMostOfProblem);
}

}  // namespace

/// Nodes that are not leaving.
std::size_t Coordinator::staying() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(nodes_, [](const auto& entry) { return entry.second.state != State::kLeaving; }));
}

void Coordinator::drain(NodeId asker, const Drain& wish, Time now) {
  const bool failed = !wish.problem.empty();
  if (failed && !goes_on_without(asker)) return;  // it asks again
  if (failed && takes_ranks(asker)) {             // the drained node stays
    const Node& node = nodes_.at(asker);
    const std::string reason = why_it_leaves("node " + describe_node(node.join, node.address), wish.problem);
    dismiss(asker, Drained{round_, reason, /*replaced=*/true, failed});
    return remove(nodes_.find(asker), reason, now);
  }
  // Another one's workers are held back only until all are in the round with its spare: this one never comes.
  if (failed && draining_ && draining_->spare && others_have_state(asker)) tell_drained(/*replaced=*/true);
  const auto found = failed ? std::vector{asker} : nodes_called(wish.node);
  auto [text, passes] = drain_problem(wish.node, found, failed);
  const bool accepted = text.empty();
  // First of all messages: the asker may be the node that leaves.
  const auto place = static_cast<std::ptrdiff_t>(messages_.size());
  if (accepted && draining_) {
    const Node& node = nodes_.at(draining_->node);
    text = "node " + describe_node(node.join, node.address) + " is already leaving the job";
  } else if (accepted) {
    text = begin_drain(found.front(), wish.problem, now);
    drains_.emplace_back(nodes_.at(found.front()).join.node, text);
  }
  messages_.emplace(messages_.begin() + place, asker, DrainAnswer{wish.request, accepted, text, passes});
}

bool Coordinator::takes_ranks(NodeId id) const {
  return draining_ && !draining_->told && draining_->spare == id;
}

/// Whether the job can go on without a node whose workers cannot start: not while others wait likewise, as
/// for a disk that they share.
bool Coordinator::goes_on_without(NodeId id) const {
  const auto running = static_cast<std::size_t>(
      std::ranges::count_if(members_, [this](NodeId member) { return runs_in_round(member); }));
  const std::size_t needed = elastic() ? static_cast<std::size_t>(settings_.min_nodes) : members_.size();
  return phase_ == Phase::kRunning && unfinished_ == members_.size() && !runs_in_round(id) && running > 0 &&
         nodes_.at(id).state == State::kInRound &&
         running + ready_ + (takes_ranks(id) && !draining_->failed ? 1 : 0) >= needed;
}

std::vector<Coordinator::NodeId> Coordinator::nodes_called(const std::string& wanted) const {
  std::vector<NodeId> found;
  for (const auto& [id, node] : nodes_)
    if (node.join.node == wanted || (wanted.size() >= kShortestId && node.join.id.starts_with(wanted)))
      found.push_back(id);
  const auto rank = parse_integer(wanted, 0, settings_.max_nodes - 1);
  if (!found.empty() || !rank || static_cast<std::size_t>(*rank) >= members_.size()) return found;
  const NodeId member = members_[static_cast<std::size_t>(*rank)];
  return nodes_.contains(member) ? std::vector{member} : found;
}

Coordinator::DrainProblem Coordinator::drain_problem(const std::string& wanted,
                                                     const std::vector<NodeId>& found, bool failed) const {
  const bool enough = staying() - 1 >= static_cast<std::size_t>(settings_.min_nodes);
  if (hands_over_at_)
    return {"the coordinator's node is leaving the job; try again when another node has taken its place",
            /*passes=*/enough};
  if (found.empty())
    return {"the job has no node " + single_quoted(shortened(printable(wanted), kShortestId * 8)) + ": " +
            first_few(describe_nodes())};
  if (found.size() > 1)
    return {std::to_string(found.size()) + " nodes of the job are called " +
            single_quoted(printable(wanted)) +
            ": expected a node rank, or the JOB that ddpctl ps shows for the node's ddprun"};
  const Node& node = nodes_.at(found.front());
  const std::string name = "node " + describe_node(node.join, node.address);
  if (!failed && is_own(node))
    return {name + " has the coordinator and cannot be drained: " +
            (settings_.has_successors && (elastic() || !is_needed(found.front()))
                 ? "send SIGTERM to its ddprun instead, and another node takes its place"
                 : "end the job with ddpctl stop instead, and start it again without this node")};
  if (draining_) {
    const Node& other = nodes_.at(draining_->node);
    if (draining_->node == found.front()) return {};
    return {"node " + describe_node(other.join, other.address) +
                " is already leaving the job; try again when it has left",
            /*passes=*/enough};
  }
  if (node.state == State::kLeaving) return {name + " is already leaving the job"};
  if (!has_started())
    return {"the job is still waiting for its nodes; try again when its workers are running",
            /*passes=*/takes_over()};
  const bool works = node.state != State::kReady;
  if (works && phase_ == Phase::kRunning && unfinished_ < members_.size())
    return {"workers have succeeded: the job is about to end"};
  const bool goes_on = phase_ == Phase::kRunning || phase_ == Phase::kLeading;
  if (works && goes_on && !in_place_.empty() && has_state(found.front()) && !others_have_state(found.front()))
    return {"only the workers of " + name +
                " have the training's state, since all others have just started; try again in a moment",
            /*passes=*/enough};
  if (works && !reaches_etcd_)
    return {"etcd does not answer, so no round could follow; try again when it does", /*passes=*/enough};
  if (!enough)
    return {"without " + name + " the job would have " + std::to_string(staying() - 1) + " of at least " +
            std::to_string(settings_.min_nodes) + " nodes, and there is no spare"};
  return {};
}

/// problem  why its workers cannot start; empty: its user wants it to leave
/// returns  what becomes of the node's ranks, for the user
std::string Coordinator::begin_drain(NodeId id, const std::string& problem, Time now) {
  Node& node = nodes_.at(id);
  const std::string name = "node " + describe_node(node.join, node.address);
  const State before = std::exchange(node.state, State::kLeaving);
  draining_ =
      Draining{id, problem.empty() ? name + " is drained" : why_it_leaves(name, problem), !problem.empty()};
  if (!node.join.id.empty()) drained_ids_[node.join.id] = draining_->failed;
  const bool stands_by = before == State::kReady && std::ranges::count(members_, id) == 0;
  if (before == State::kReady) --ready_;
  if (before == State::kReady || phase_ == Phase::kStopping) {
    tell_drained(/*replaced=*/false);
    return name +
           (stands_by ? " leaves the job; it was standing by" : " leaves the job before its next round");
  }
  if (phase_ == Phase::kLeading && in_place_.empty()) {  // its workers have not started
    tell_drained(/*replaced=*/false);
    abandon_round(now);
    return name + " leaves the job before its next round";
  }
  drained_in_ = std::max(node.started, first_round_);
  if (take_spare(id, node.join, draining_->reason))
    return in_place_ + ", and the other workers go on if their program can";
  const Node* next = nullptr;
  for (const auto& [other, each] : nodes_)
    if (each.state == State::kReady && (next == nullptr || each.order < next->order)) next = &each;
  stop_round(draining_->reason, std::chrono::milliseconds(0));
  return draining_->reason + "; all workers get SIGTERM, and restart " +
         (next == nullptr
              ? "without it, on " + std::to_string(staying()) + (staying() == 1 ? " node" : " nodes")
              : "with node " + describe_node(next->join, next->address) + " in its place");
}

bool Coordinator::runs_in_round(NodeId id) const {
  const auto member = nodes_.find(id);
  return member != nodes_.end() && member->second.running >= round_;
}

bool Coordinator::all_run() const {
  // One that is gone has succeeded: another one's loss would have ended the round.
  return std::ranges::all_of(members_,
                             [this](NodeId id) { return !nodes_.contains(id) || runs_in_round(id); });
}

/// Whether all workers have succeeded before a spare could take the ranks of a node that is being drained:
/// etcd or the new round's leader may have been silent. Also if the node was to keep its ranks.
bool Coordinator::has_succeeded_meanwhile() const {
  const bool drains = draining_ && !draining_->told;
  const bool waits = phase_ == Phase::kLeading && kept_in_ == round_;
  if (ended_ || in_place_.empty() || !(drains || waits)) return false;
  return std::ranges::all_of(members_, [&](NodeId id) {
    const auto node = nodes_.find(drains && draining_->spare == id ? draining_->node : id);
    return node != nodes_.end() && node->second.succeeded >= drained_in_;
  });
}

void Coordinator::tell_drained(bool replaced) {
  if (!draining_ || std::exchange(draining_->told, true)) return;
  send(draining_->node, Drained{std::max(round_, 0), draining_->reason, replaced, draining_->failed});
}

/// The spare for a node that is being drained is lost, and there is no other: the node stays after all.
bool Coordinator::keep_ranks(NodeId lost, const std::string& reason) {
  if (!takes_ranks(lost)) return false;
  const NodeId id = undo_drain(lost);
  const Join& join = nodes_.at(id).join;
  const std::string text =
      reason + "; node " + describe_node(join, nodes_.at(id).address) + " keeps its ranks";
  lead_round(text);
  kept_in_ = round_;
  drains_.emplace_back(join.node, text);
  return true;
}

/// Whether workers of this member are not new, and so have the training's state.
bool Coordinator::has_state(NodeId id) const {
  const auto member = nodes_.find(id);
  return member != nodes_.end() &&
         member->second.running > std::max(member->second.lost_state, first_round_ - 1);
}

bool Coordinator::others_have_state(NodeId id) const {
  return std::ranges::any_of(members_, [&](NodeId member) { return member != id && has_state(member); });
}

/// A member, or one of its workers, is lost while the spare takes over from a node that is being drained. If
/// only that node's workers have the training's state now, they stay.
void Coordinator::keep_last_state(NodeId lost, const std::string& reason, Time now) {
  if (!draining_ || draining_->told || !draining_->spare || draining_->spare == lost) return;
  const NodeId spare = *draining_->spare;
  if (!nodes_.contains(spare)) return;
  if (is_own(nodes_.at(spare)) || others_have_state(spare)) return;  // the coordinator cannot go
  keep_ranks(spare, reason);
  nodes_.at(spare).state = State::kLeaving;  // it has no place in the round
  give_up_vote(spare);
  expel(spare, reason, now);
}

/// A member is lost while the spare takes over from a node that is being drained, and too few nodes would be
/// left without that one: it stays, and all workers restart.
///
/// returns  why they do; empty: the node is not needed
std::string Coordinator::keep_needed_node(NodeId lost, const std::string& reason) {
  if (!draining_ || draining_->told || staying() >= static_cast<std::size_t>(settings_.min_nodes)) return "";
  const Node& node = nodes_.at(undo_drain(lost));
  const std::string text = reason + "; node " + describe_node(node.join, node.address) + " stays in the job";
  drains_.emplace_back(node.join.node, text);
  return text;
}

/// The node that is being drained, and has not been told, takes a lost member's place. returns its id
Coordinator::NodeId Coordinator::undo_drain(NodeId lost) {
  const NodeId id = draining_->node;
  draining_.reset();
  Node& node = nodes_.at(id);
  node.state = State::kInRound;
  drained_ids_.erase(node.join.id);
  std::replace(members_.begin(), members_.end(), lost, id);
  return id;
}

}  // namespace ddprun::launcher
