#include "tests/launcher/rendezvous/job_oracle.h"

#include <algorithm>
#include <tuple>

#include <ddprun/common/error_file.h>
#include "launcher/rendezvous/admission.h"

namespace ddprun::test {
using namespace launcher;
namespace {

template <class Message>
std::vector<std::pair<JobOracle::Id, Message>> all(const Outgoing& messages) {
  std::vector<std::pair<JobOracle::Id, Message>> found;
  for (const auto& [id, message] : messages)
    if (const auto* wanted = std::get_if<Message>(&message)) found.emplace_back(id, *wanted);
  return found;
}

template <class Message>
const Message* said(const Cause& cause) {
  const auto* message = std::get_if<NodeMessage>(&cause);
  return message == nullptr ? nullptr : std::get_if<Message>(message);
}

/// The exit code that a failure leads to; never success.
int exit_code(const AttemptEnd& end) {
  int code = 0;
  if (const auto* failed = std::get_if<WorkerFailed>(&end)) code = to_exit_code(failed->status);
  if (std::holds_alternative<Hung>(end) || std::holds_alternative<TimedOut>(end)) code = 124;
  if (const auto* received = std::get_if<SignalReceived>(&end)) code = 128 + received->signal;
  if (const auto* failed = std::get_if<StartFailed>(&end)) code = failed->exit_code;
  return code == 0 ? 125 : code;
}

}  // namespace

bool JobOracle::present(Id id) const {
  const auto found = nodes_.find(id);
  return found != nodes_.end() && found->second.standing == Standing::kPresent;
}

void JobOracle::check(Id id, const Cause& cause, const Outgoing& messages, const std::optional<End>& ended) {
  const bool joins = nodes_.count(id) == 0 && said<Join>(cause) != nullptr;
  note_input(id, cause);
  const auto answers = [id](const auto& sent) {
    return sent.first == id && !std::holds_alternative<Beat>(sent.second);
  };
  promise(!joins || std::any_of(messages.begin(), messages.end(), answers), "a join without an answer");
  promise(!said<Summary>(cause) || std::none_of(messages.begin(), messages.end(), answers) ||
              all<Refused>(messages).empty(),
          "a node is refused for its summary");
  check_drain(cause, messages);
  check_lead(id, cause, messages);
  check_start(messages);
  check_stop(id, cause, messages);
  check_end(id, cause, messages, ended);
  check_each(id, cause, messages);
  // Only now: a signal may end the job for all, him who left included.
  if (said<Leave>(cause) && nodes_.count(id) > 0) {
    if (nodes_[id].open_round)
      nodes_[id].saves = true;
    else if (!nodes_[id].leaving)
      nodes_[id].standing = Standing::kGone;
    else
      nodes_[id].has_left = true;
  }
  const auto* over = said<Ended>(cause);
  if (over && nodes_.count(id) > 0 &&
      (nodes_[id].saves || ((over->drained || nodes_[id].has_left) && nodes_[id].leaving)))
    nodes_[id].standing = Standing::kGone;
}

void JobOracle::note_input(Id id, const Cause& cause) {
  if (const auto* join = said<Join>(cause); join != nullptr && nodes_.count(id) == 0)
    nodes_.emplace(id,
                   Node{Standing::kPresent, *join, nodes_.size(), {}, -1, false, false, false, -1, false, 0});
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  if (std::holds_alternative<ConnectionLost>(cause)) found->second.standing = Standing::kGone;
  if (const auto* over = said<Ended>(cause);
      over != nullptr && found->second.open_round && over->round == led_round_)
    found->second.open_round.reset();
  if (const auto* success = said<Succeeded>(cause);
      success != nullptr && success->round == led_round_ && found->second.open_round == led_round_)
    succeeded_.insert(id);
  if (const auto* success = said<Succeeded>(cause);
      success != nullptr && found->second.open_round && success->round <= *found->second.open_round)
    found->second.succeeded = std::max(found->second.succeeded, success->round);
}

/// A node that has not been told yet that it is drained counts in place of its spare, whose round might never
/// begin; then the others have said it of an earlier round, too.
bool JobOracle::have_succeeded() const {
  if (std::ranges::all_of(members_, [this](Id id) { return succeeded_.contains(id); })) return true;
  const auto has = [this](Id id) { return nodes_.at(id).succeeded >= first_round_; };
  const bool drained = std::ranges::any_of(
      nodes_, [&](const auto& node) { return node.second.leaving && !node.second.told && has(node.first); });
  return drained && std::ranges::count_if(members_, has) + 1 >= std::ssize(members_);
}

/// Enough nodes stay, and one leaves at a time.
void JobOracle::check_drain(const Cause& cause, const Outgoing& messages) {
  const auto* wish = said<Drain>(cause);
  for (const auto& [asker, answer] : all<DrainAnswer>(messages)) {
    promise(wish != nullptr && !answer.text.empty(), "an answer to nobody");
    if (!answer.accepted) continue;
    const bool again = std::ranges::any_of(nodes_, [&](const auto& node) {
      return node.second.leaving && present(node.first) && node.second.join.id.starts_with(wish->node);
    });
    if (again) continue;
    ++drains_;
    int stay = 0;
    for (auto& [id, node] : nodes_) {
      if (!present(id)) continue;
      const bool keeps = !node.told && leads_in_place_ && led_round_ != started_round_;  // its ranks
      promise(!node.leaving || keeps, "two nodes are drained at once");
      if (node.join.id.starts_with(wish->node))
        node.leaving = true;
      else
        ++stay;
    }
    promise(stay >= settings_.min_nodes, "a node is drained that is needed");
  }
}

/// Who may be told what, whatever else it means.
void JobOracle::check_each(Id sender, const Cause& cause, const Outgoing& messages) {
  for (const auto& [id, message] : messages) {
    const std::string who = "node " + std::to_string(id) + ": ";
    promise(nodes_.count(id) > 0, who + "a message before it has joined");
    Node& node = nodes_.at(id);
    promise(node.standing == Standing::kPresent, who + "message " + std::to_string(message.index()) +
                                                     " after it was lost, refused or told the end");
    if (std::holds_alternative<Refused>(message) || std::holds_alternative<End>(message))
      node.standing = Standing::kGone;
    if (std::holds_alternative<Stop>(message) && node.leaving && !node.told && !node.saves) {
      // Another one is lost, and the job needs this one, too; or it was to keep its ranks in the next round.
      const auto others = std::ranges::count_if(nodes_, [&](const auto& each) {
        const bool goes = said<Leave>(cause) && each.first == sender;
        return present(each.first) && each.second.stays() && !goes;
      });
      const bool keeps = leads_in_place_ && led_round_ != started_round_;
      promise(keeps || others < settings_.min_nodes, who + "is not drained after all");
      node.leaving = false;
    }
    promise(node.stays() || !std::holds_alternative<Stop>(message), who + "leaves, and is told to stop");
    promise(!node.told || node.standing == Standing::kGone || std::holds_alternative<Beat>(message) ||
                std::holds_alternative<DrainAnswer>(message),
            who + "a message after it was told to leave");
    if (std::holds_alternative<Drained>(message)) {
      const auto* wish = said<Drain>(cause);
      const bool leaves = id == sender && (said<Leave>(cause) || (said<Ended>(cause) && node.saves) ||
                                           (wish != nullptr && !wish->problem.empty()));
      promise(node.leaving || leaves, who + "is drained unasked");
      node.told = true;
      if (leaves && wish != nullptr && !node.leaving) node.standing = Standing::kGone;  // a spare that failed
    }
    if (const auto* lead = std::get_if<Lead>(&message)) {
      promise(lead->round > led_round_, who + "round numbers do not grow");
      promise(!node.open_round || leads_in_place_, who + "leads before it has ended its former round");
      led_round_ = lead->round;
      leader_ = id;
    }
  }
}

/// A round in place is led while workers live that nobody has stopped.
void JobOracle::check_lead(Id sender, const Cause& cause, const Outgoing& messages) {
  if (all<Lead>(messages).empty()) return;
  std::set<Id> leaving;
  for (const auto& [id, message] : messages) {
    if (std::holds_alternative<Lead>(message)) break;
    if (std::holds_alternative<Refused>(message)) leaving.insert(id);
  }
  if (said<Leave>(cause)) leaving.insert(sender);
  leads_in_place_ = std::any_of(members_.begin(), members_.end(), [&](Id id) {
    return present(id) && leaving.count(id) == 0 && nodes_.at(id).stays() && nodes_.at(id).open_round &&
           nodes_.at(id).stopped_round < *nodes_.at(id).open_round;
  });
  // Or a node that was being drained keeps its ranks.
  leads_in_place_ = leads_in_place_ || std::ranges::any_of(nodes_, [&](const auto& node) {
                      const auto& [id, each] = node;
                      return each.leaving && !each.told && present(id) && leaving.count(id) == 0 &&
                             each.open_round && each.stopped_round < *each.open_round;
                    });
  if (!leads_in_place_) return;
  promise(succeeded_.empty(), "a round in place after a node has succeeded");
  const auto* failed = said<Failed>(cause);
  // The workers of a spare that is taking over may fail: the node that is being drained keeps its ranks.
  const bool takes_over = replacing_.contains(sender) && std::ranges::any_of(nodes_, [](const auto& node) {
                            return node.second.leaving && !node.second.told;
                          });
  if (failed != nullptr && failed->in_place && failed->round == led_round_ && present(sender) && !takes_over)
    ++restarts_;
  promise(restarts_ <= settings_.restarts.max_restarts, "more rounds in place than restarts are allowed");
}

void JobOracle::check_start(const Outgoing& messages) {
  const auto starts = all<Start>(messages);
  if (starts.empty()) return;
  const Start& first = starts.front().second;
  for (const auto& [id, node] : nodes_)
    promise(leads_in_place_ || !node.saves || !present(id) || succeeded_.contains(id),
            "a round starts while workers may still save");
  const auto size = starts.size();
  promise(first.number == led_round_ && first.number > started_round_, "a round starts that nobody leads");
  promise(size >= static_cast<std::size_t>(settings_.min_nodes) &&
              size <= static_cast<std::size_t>(settings_.max_nodes),
          "a round of " + std::to_string(size) + " nodes");
  std::vector<Id> by_rank(size, 0);
  for (const auto& [id, start] : starts) {
    Node& node = nodes_.at(id);
    promise(start.group_rank >= 0 && start.group_rank < static_cast<int>(size),
            "a group rank outside of the group");
    Id& place = by_rank[static_cast<std::size_t>(start.group_rank)];
    promise(place == 0, "two nodes of one group rank");
    place = id;
    // A node that was to be drained keeps its ranks if no spare lives to take them.
    const bool keeps = std::exchange(node.leaving, false) && node.open_round;
    const bool goes_on = leads_in_place_ && (keeps || std::count(members_.begin(), members_.end(), id) > 0);
    promise(node.open_round.has_value() == goes_on,
            goes_on ? "a node without workers goes on" : "a start before the former round has ended");
    promise(start.in_place == leads_in_place_, "a start in another way than it was led");
    node.open_round = start.number;
    node.ran = true;
    Start same = start;
    same.group_rank = first.group_rank;
    same.first_rank = first.first_rank;
    same.first_role_rank = first.first_role_rank;
    promise(same == first, "nodes of one round are told different things");
  }
  int next_rank = 0;
  for (const Id id : by_rank) {
    const auto start =
        std::find_if(starts.begin(), starts.end(), [id](const auto& sent) { return sent.first == id; });
    promise(start->second.first_rank == next_rank, "ranks overlap or have gaps");
    next_rank += nodes_.at(id).join.workers;
  }
  promise(first.world_size == next_rank, "the world size is not the number of workers");
  promise(by_rank.front() == leader_, "another node leads than that of rank 0");
  promise(static_cast<int>(size) == first.group_world_size,
          "the group world size is not the number of nodes");
  if (leads_in_place_)
    check_in_place(by_rank);
  else
    check_order(by_rank);
  members_ = by_rank;
  succeeded_.clear();
  started_round_ = first.number;
  if (leads_in_place_) return;
  first_round_ = started_round_;
  replacing_.clear();
}

/// The members go on in their places, and nodes that stood by take those of lost ones.
void JobOracle::check_in_place(const std::vector<Id>& by_rank) {
  promise(by_rank.size() == members_.size(), "a round in place of another size");
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    if (by_rank[i] == members_[i]) continue;
    promise(settings_.in_place && (!present(members_[i]) || !nodes_.at(members_[i]).stays()),
            "a node that lives is replaced");
    promise(nodes_.at(by_rank[i]).join.workers == nodes_.at(members_[i]).join.workers,
            "a node is replaced by one with another number of workers");
  }
  replacing_.clear();
  for (const Id id : by_rank)
    if (std::ranges::count(members_, id) == 0) replacing_.insert(id);
  ++rounds_in_place_;
}

void JobOracle::check_order(const std::vector<Id>& by_rank) const {
  for (std::size_t i = 1; i < by_rank.size(); ++i) {
    const Node &a = nodes_.at(by_rank[i - 1]), &b = nodes_.at(by_rank[i]);
    const int rank_a = a.join.node_rank.value_or(1 << 20), rank_b = b.join.node_rank.value_or(1 << 20);
    const bool names =
        natural_less(a.join.node, b.join.node) || (a.join.node == b.join.node && a.order < b.order);
    promise(rank_a < rank_b || (rank_a == rank_b && names), "ranks are not in the order of nodes");
  }
}

void JobOracle::check_stop(Id sender, const Cause& cause, const Outgoing& messages) {
  auto stops = all<Stop>(messages);
  // Between two rounds the last one comes again if more nodes have left.
  std::erase_if(stops, [this](const auto& told) {
    int& left = nodes_.at(told.first).told_left;
    return std::exchange(left, told.second.left) < told.second.left &&
           told.second.round == nodes_.at(told.first).stopped_round;
  });
  if (stops.empty()) return;
  int led = led_round_;
  for (const auto& [id, message] : messages) {
    if (std::holds_alternative<Stop>(message)) break;
    if (const auto* lead = std::get_if<Lead>(&message))
      led = lead->round;  // in place; another loss ends it at once
  }
  std::set<Id> stopped, expected;
  for (const auto& [id, stop] : stops) {
    promise(stop.round == led && stop.round > nodes_.at(id).stopped_round, "a stop of a round that is none");
    nodes_.at(id).stopped_round = stop.round;
    stopped.insert(id);
  }
  for (const Id id : members_)
    if (present(id) && nodes_.at(id).stays()) expected.insert(id);
  for (const Id id : stopped)  // one that is not drained after all: see check_each()
    if (const Node& node = nodes_.at(id); node.leaving && !node.told && !node.saves) expected.insert(id);
  for (const auto& [id, refusal] : all<Refused>(messages))
    if (stopped.count(id) == 0) expected.erase(id);
  if (said<Leave>(cause)) expected.erase(sender);
  const bool includes = std::includes(stopped.begin(), stopped.end(), expected.begin(), expected.end());
  promise(led != started_round_ ? !leads_in_place_ || includes : stopped == expected,
          "not the members of the round are stopped");
  // Of a fixed size, and with nobody to take a lost node's place.
  const bool fixed = settings_.min_nodes == settings_.max_nodes && settings_.spares == 0;
  const std::string& reason = stops.front().second.reason;
  const bool joined = reason.ends_with(" joins") || reason.ends_with(" join");  // whatever was said just then
  const auto* failed = said<Failed>(cause);
  const bool follows = failed && leads_in_place_ &&  // from what began the round in place
                       (std::holds_alternative<EndedByPeers>(failed->end) ||
                        (std::holds_alternative<WorkerFailed>(failed->end) && failed->round < led));
  if (!follows && (fixed || (failed && !joined))) ++restarts_;
  promise(restarts_ <= settings_.restarts.max_restarts, "more restarts than are allowed");
}

void JobOracle::check_end(Id sender, const Cause& cause, const Outgoing& messages,
                          const std::optional<End>& ended) {
  const auto ends = all<End>(messages);
  if (over_) {
    promise(said<Join>(cause) ? ends.size() <= 1 : messages.empty(), "a message after the end of the job");
    for (const auto& [id, end] : ends)
      promise(end.exit_code != 0, "success of a node that came after the end");
    return;
  }
  over_ = ended.has_value();
  if (!over_) return promise(ends.empty(), "an end of a job that goes on");
  std::set<Id> told, expected;
  for (const auto& [id, end] : ends) {
    promise(told.insert(id).second, "two ends for one node");
    const bool unused = ended->exit_code == 0 && !nodes_.at(id).ran;
    promise(end.exit_code == ended->exit_code && (end.reason == ended->reason) != unused,
            "nodes are told different ends");
    promise(end.user_signal == ended->user_signal, "the workers of one job end with different signals");
  }
  for (const auto& [id, node] : nodes_)
    if (present(id) && (!node.saves || told.contains(id))) expected.insert(id);  // some have succeeded
  for (const auto& [id, refusal] : all<Refused>(messages))
    if (told.count(id) == 0) expected.erase(id);
  if (const auto* leave = said<Leave>(cause))
    promise(ended->exit_code != exit_code_of_signal(leave->signal) || ended->user_signal == leave->signal,
            "an end that is silent about a user's signal");
  if (said<Leave>(cause) && told.count(sender) == 0) expected.erase(sender);  // it needs not be told
  promise(told == expected, "not all nodes are told the end");
  if (ended->exit_code == 0 && !std::holds_alternative<HostEnds>(cause))
    promise(have_succeeded(), "success before all nodes have succeeded");
  if (const auto* failed = said<Failed>(cause);
      failed != nullptr && nodes_.count(sender) > 0 && nodes_.at(sender).open_round == failed->round)
    promise(ended->exit_code == exit_code(failed->end), "another exit code than the failure's");
}

}  // namespace ddprun::test
