#include "launcher/rendezvous/coordinator.h"

#include <algorithm>
#include <tuple>

#include <ddprun/common/invariant.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"
#include "launcher/rendezvous/admission.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxTextBytes = 2000;  // of a node's text, to which words are added

// A node lost this often in a row, each time from a young round, would keep restarting the others.
constexpr int kMaxLosses = 5;
constexpr std::chrono::minutes kYoung{5};
constexpr int kSummaryMs = 1000;  // or 1 ms per node

}  // namespace

Coordinator::Coordinator(CoordinatorSettings settings, Time now)
    : settings_(std::move(settings)),
      forming_since_(settings_.lost_at.value_or(now)),
      resigns_at_(now + 2 * settings_.node_timeout),
      next_beat_(now) {
  go_on_after(settings_.former, now);
}

void Coordinator::receive(NodeId id, const NodeMessage& message, const std::string& address, Time now) {
  const auto found = nodes_.find(id);
  if (resigned_) return;
  if (const auto* wish = std::get_if<Join>(&message)) {
    if (found == nodes_.end() && gone_.count(id) == 0 && !hands_over_at_) join(id, *wish, address, now);
  } else if (found != nodes_.end() && ended_) {
    if (std::holds_alternative<Ended>(message)) found->second.has_ended = true;
  } else if (found != nodes_.end()) {
    found->second.missed_beats = 0;
    handle(id, found->second, message, now);
  }
  check_progress(now);
}

bool Coordinator::all_ended() const {
  return ended_ && ended_->user_signal &&
         std::ranges::all_of(nodes_, [](const auto& node) { return node.second.has_ended; });
}

const std::string* Coordinator::node_name(NodeId id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second.join.node;
}

void Coordinator::join(NodeId id, const Join& join, const std::string& address, Time now) {
  if (const auto earlier = by_id_.find(join.id); earlier != by_id_.end())
    expel(earlier->second, "its ddprun has connected again", now);
  if (ended_) return dismiss(id, last_word(/*stood_by=*/false));
  if (const auto drained = drained_ids_.find(join.id); drained != drained_ids_.end())
    return dismiss(id, Drained{std::max(round_, 0), "node " + describe_node(join, address) + " is drained",
                               /*replaced=*/false, /*failed=*/drained->second});
  if (const std::string reason = problem_with(join, address); !reason.empty())
    return dismiss(id, Refused{reason, /*other_job=*/has_other_run_id(settings_, join)});
  if (!join.unfit.empty()) return keep_out(id, join, address);
  if (elastic()) unfit_.erase({join.node_rank, describe_node(join, address)});  // otherwise it is too late
  Node& node = nodes_[id];
  node.join = join;
  node.address = join.address.empty() ? address : join.address;
  node.order = next_order_++;
  node.was_in_round = join.former.number >= 0;
  if (join.node_rank) ranks_[*join.node_rank] = id;
  if (!join.id.empty()) by_id_[join.id] = id;
  ++ready_;
  go_on_after(join.former, now);
  send_waiting(id);
}

/// The node has come only to say that it does not take part.
void Coordinator::keep_out(NodeId id, const Join& join, const std::string& address) {
  const std::string node = describe_node(join, address);
  const std::string reason =
      "node " + node + " stays out: " + shortened(printable(join.unfit), kMaxTextBytes);
  // A job that has begun waits for nodes as it would without this one: another may come in its place.
  if (!has_started() && !takes_over()) unfit_[{join.node_rank, node}] = reason;
  dismiss(id, Refused{reason});
}

std::string Coordinator::problem_with(const Join& join, const std::string& address) const {
  const std::string reason = join_problem(settings_, join, address);
  if (!reason.empty()) return reason;
  const std::string node = "node " + describe_node(join, address);
  if (const auto taken = ranks_.find(join.node_rank.value_or(-1)); taken != ranks_.end()) {
    const Node& other = nodes_.at(taken->second);
    return "node rank " + std::to_string(*join.node_rank) + " is wanted by " + node + " and taken by node " +
           describe_node(other.join, other.address);
  }
  const bool begun = phase_ == Phase::kLeading || phase_ == Phase::kRunning;
  const bool full = staying() >= max_nodes() + static_cast<std::size_t>(settings_.spares) ||
                    (begun && settings_.spares == 0);
  if (!elastic() && full)
    return node + " comes too late: the job " + single_quoted(settings_.run_id) +
           (settings_.program.empty() ? "" : ", which runs " + single_quoted(settings_.program) + ",") +
           " has all " + std::to_string(settings_.max_nodes) + " nodes" +
           (settings_.spares == 0 ? "" : ", and --spares=" + std::to_string(settings_.spares)) + ": " +
           first_few(describe_nodes());
  const auto lost = losses_.find(node);
  if ((elastic() || settings_.spares > 0) && lost != losses_.end() && lost->second >= kMaxLosses)
    return node + " was lost " + std::to_string(kMaxLosses) + " times soon after it had joined";
  return "";
}

void Coordinator::handle(NodeId id, Node& node, const NodeMessage& message, Time now) {
  const bool in_round = node.state != State::kReady;
  const bool leaves = node.state == State::kLeaving;
  if (const auto* leading = std::get_if<Leading>(&message)) {
    if (phase_ == Phase::kLeading && leading->round == round_ && id == members_.front())
      begin_round(leading->port, now);
  } else if (const auto* failed = std::get_if<Failed>(&message)) {
    const bool first = phase_ == Phase::kRunning || phase_ == Phase::kLeading;
    // From an earlier round: the next one in place has replaced that worker, too.
    const bool known = failed->in_place && failed->round != round_;
    // ddpctl stop ends the job also while its workers are being stopped, and on a node that is being drained.
    if (std::holds_alternative<SignalReceived>(failed->end) && node.was_in_round) return fail(*failed, now);
    if (in_round && first && takes_ranks(id) && unfinished_ == members_.size())
      return expel(id, failed->text, now);  // another spare can, or the drained node keeps them
    if (in_round && !leaves && first && failed->round >= first_round_ && failed->round <= round_ && !known)
      fail(*failed, now);
    if (in_round && failed->in_place && failed->alone)
      node.lost_state = std::max(node.running, failed->round);
    if (in_round && failed->in_place && runs()) keep_last_state(id, failed->text, now);
  } else if (const auto* succeeded = std::get_if<Succeeded>(&message)) {
    if (succeeded->round <= node.started) node.succeeded = std::max(node.succeeded, succeeded->round);
    if (node.state == State::kInRound && phase_ == Phase::kRunning && succeeded->round == round_) {
      check_invariant(unfinished_ > 0, "a member that succeeds was unfinished");
      node.state = State::kSucceeded;
      --unfinished_;
    }
    if (has_succeeded_meanwhile()) end(0, "all workers succeeded");
  } else if (const auto* over = std::get_if<Ended>(&message)) {
    if (leaves) {
      reached_ = furthest(reached_, over->reached);
      if (!over->drained && !gone_.contains(id)) return;
      give_up_vote(id);
      if (node.waits)
        dismiss(id, Drained{round_, "node " + describe_node(node.join, node.address) + " is drained"});
      return remove(nodes_.find(id), "it was drained", now);
    }
    if (!in_round || over->round != round_) return;
    if (phase_ != Phase::kStopping) return expel(id, "it ended its workers unasked", now);
    reached_ = furthest(reached_, over->reached);
    node.state = State::kReady;
    ++ready_;
  } else if (const auto* beat = std::get_if<Beat>(&message)) {
    if (beat->silent_ms) node.signs = signs_in(*beat, now);
    node.begun = std::max(node.begun, beat->begun.value_or(-1));
    node.running = std::max(node.running, beat->running.value_or(-1));
    if (phase_ == Phase::kRunning && draining_ && draining_->spare && all_run())
      tell_drained(/*replaced=*/true);
  } else if (const auto* wish = std::get_if<Drain>(&message)) {
    drain(id, *wish, now);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    const std::string reason =
        "node " + describe_node(node.join, node.address) + " received " + signal_name(leave->signal);
    // Also between two rounds: without this node there cannot be another.
    if (!elastic() && !leaves && !takes_ranks(id) && is_needed(id))
      return end(exit_code_of_signal(leave->signal), reason, /*dump_stacks=*/false, leave->signal);
    give_up_vote(id);
    if (leaves) {  // its workers may still save; it says when they have ended
      node.running = -1;
      if (draining_ && draining_->node == id) node.waits = !std::exchange(draining_->told, true);
      return;
    }
    const bool saves = node.state == State::kInRound && node.started >= first_round_ &&
                       (runs() || phase_ == Phase::kStopping);
    if (!saves) {
      if (!elastic() && node.started >= 0)
        dismiss(id, Drained{round_, reason});  // an elastic job's goes by itself
      return remove(nodes_.find(id), reason, now, leave->signal);
    }
    // The next round, which would replace what its workers save, waits until they have ended.
    node.state = State::kLeaving;
    node.waits = !elastic();
    node.running = -1;
    if (node.join.node_rank) ranks_.erase(*node.join.node_rank);
    if (runs()) replace_member(id, node.join, reason, now, leave->signal);
  }
}

/// It ends, and takes part in no round any more, with this coordinator or another.
void Coordinator::give_up_vote(NodeId id) {
  const auto erased = std::erase(voters_, id);
  const auto node = nodes_.find(id);
  if (node == nodes_.end() || !is_own(node->second))
    left_ += static_cast<int>(erased);  // whoever loses the coordinator does not count its node anyway
  for (auto& [superseded, former] : former_voters_) std::erase(former, id);
  gone_.insert(id);
  // Should the coordinator be lost before the next round, the others must not wait for this node.
  if (settings_.has_successors && has_started() && !runs() && !ended_ && !hands_over_at_) tell_who_left();
}

/// Between two rounds: the last Stop again.
void Coordinator::tell_who_left() {
  stop_.left = left_;
  for (const NodeId id : voters_)
    if (const auto node = nodes_.find(id); node != nodes_.end() && node->second.state != State::kLeaving)
      send(id, stop_);
}

/// Whether the last round had this node, or still has its place.
bool Coordinator::is_needed(NodeId id) const {
  const Node& node = nodes_.at(id);
  if (std::ranges::count(members_, id) > 0) return true;
  if (!has_started()) return node.was_in_round && node.join.former.number == former_.number;
  const auto is_gone = [this](NodeId member) { return !nodes_.contains(member); };
  return node.was_in_round && nodes_.size() <= max_nodes() && std::ranges::any_of(members_, is_gone);
}

void Coordinator::lose(NodeId id, const std::string& reason, Time now) {
  gone_.erase(id);
  if (resigned_) return;
  drop(id, reason, now);
  check_progress(now);
}

/// The node is silent, or violated the protocol.
void Coordinator::expel(NodeId id, const std::string& reason, Time now) {
  if (ended_ || !nodes_.contains(id)) return;  // through the loss of another node
  const Node& node = nodes_.at(id);
  dismiss(id, Refused{"node " + describe_node(node.join, node.address) + " was dropped: " + reason});
  drop(id, reason, now);
}

void Coordinator::drop(NodeId id, const std::string& reason, Time now) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const std::string node = "node " + describe_node(found->second.join, found->second.address);
  if (phase_ == Phase::kRunning && found->second.state == State::kInRound) {
    int& losses = losses_[node];
    losses = now - running_since_ < kYoung ? losses + 1 : 1;
  }
  remove(found, node + " was lost: " + reason, now);
}

void Coordinator::remove(Nodes::iterator gone, const std::string& reason, Time now,
                         std::optional<int> user_signal) {
  const State state = gone->second.state;
  const NodeId id = gone->first;
  const Join join = gone->second.join;
  if (const auto rank = ranks_.find(join.node_rank.value_or(-1)); rank != ranks_.end() && rank->second == id)
    ranks_.erase(rank);
  by_id_.erase(join.id);
  if (draining_ && draining_->node == id) draining_.reset();
  for (auto& [next, voters] : former_voters_)
    if (gone->second.begun >= next) std::ranges::replace(voters, id, kBegun);
  nodes_.erase(gone);
  check_invariant(state != State::kReady || ready_ > 0, "a ready node was counted as one");
  if (state == State::kReady) --ready_;
  if (!ended_ && !hands_over_at_ && in_minority())
    return end(LaunchError::kOwnFailure,
               reason + "; most of the last round's nodes are gone, and may go on with another coordinator",
               /*dump_stacks=*/false, user_signal);
  if (ended_ || state != State::kInRound) return;
  if (phase_ == Phase::kLeading && in_place_.empty()) return abandon_round(now);
  // Its workers may live on until their node notices; the others cannot continue without them.
  if (phase_ == Phase::kRunning || phase_ == Phase::kLeading)
    replace_member(id, join, reason, now, user_signal);
}

/// A member of the round that runs is gone, or leaves.
void Coordinator::replace_member(NodeId id, const Join& join, const std::string& reason, Time now,
                                 std::optional<int> user_signal) {
  if (ready_ > 0) keep_last_state(id, reason, now);  // else keep_needed_node()
  if (take_spare(id, join, reason)) return;
  const std::string kept = keep_needed_node(id, reason);
  if (!kept.empty()) return stop_round(kept, milliseconds(0), /*dump_stacks=*/false, user_signal);
  if (elastic() || ready_ > 0) return stop_round(reason, milliseconds(0), /*dump_stacks=*/false, user_signal);
  const char* hint = settings_.spares > 0 || settings_.restarts.max_restarts > 0
                         ? ""
                         : " (with --spares or --nnodes=MIN:MAX a job survives the loss of a node)";
  fail({round_, WorkerFailed{ExitStatus::exited(LaunchError::kOwnFailure)}, reason + hint}, now);
}

void Coordinator::fail(const Failed& failed, Time now) {
  const std::string text = shortened(printable(failed.text), kMaxTextBytes);
  // What began the round in place has been counted, if it counts.
  if (!in_place_.empty() && (std::holds_alternative<EndedByPeers>(failed.end) ||
                             (std::holds_alternative<WorkerFailed>(failed.end) && failed.round < round_)))
    return stop_round(text, pause_);
  const Clock::duration lived = phase_ == Phase::kRunning ? now - running_since_ : Clock::duration(0);
  const Decision decision = decide(settings_.restarts, failed.end, restarts_used_, lived);
  if (!decision.restart)  // a failure never ends the job with 0
    return end(decision.exit_code == 0 ? LaunchError::kOwnFailure : decision.exit_code,
               settings_.restarts.max_restarts == 0 ? text : text + "; not restarted: " + decision.reason,
               is_stuck(failed.end), signal_of(failed.end));
  restarts_used_ = decision.restarts_used;
  ++restart_count_;
  pause_ = decision.delay;
  if (failed.in_place && phase_ == Phase::kRunning && unfinished_ == members_.size())
    return lead_round(text + "; replacing only this rank: restart " + std::to_string(restarts_used_) +
                      " of " + std::to_string(settings_.restarts.max_restarts));
  failure_ = End{decision.exit_code == 0 ? LaunchError::kOwnFailure : decision.exit_code, text};
  reached_ = {};
  stop_round(text + "; " + decision.reason, decision.delay, is_stuck(failed.end));
}

/// All nodes have ended the workers of a round that failed: the job ends instead of a restart if that would
/// be one too many without a new step.
void Coordinator::judge_stall() {
  const auto failure = std::exchange(failure_, std::nullopt);
  if (!failure) return;
  stalls_.add(round_, reached_, failure->reason);
  if (!stalls_.ends_job(settings_.restarts)) return;
  std::string reason = "not restarted: " + stalls_.reason();
  for (const std::string& line : stalls_.report()) reason += "; " + line;
  end(failure->exit_code, shortened(reason, kMaxTextBytes));
}

void Coordinator::stop_round(const std::string& reason, milliseconds pause, bool dump_stacks,
                             std::optional<int> user_signal) {
  phase_ = Phase::kStopping;
  pause_ = pause;
  stop_ = {round_, reason, dump_stacks, {}, user_signal, left_};
  for (const NodeId id : members_)
    if (const auto node = nodes_.find(id); node != nodes_.end() && node->second.state != State::kLeaving)
      send(id, stop_);
  tell_drained(/*replaced=*/false);
}

void Coordinator::end(int exit_code, const std::string& reason, bool dump_stacks,
                      std::optional<int> user_signal) {
  if (ended_) return;
  ended_ = End{exit_code, reason, dump_stacks, user_signal};
  for (const auto& [id, node] : nodes_) send(id, node.started >= 0 ? *ended_ : last_word(/*stood_by=*/true));
}

/// To a node whose workers have not run: it was not needed, or has come after the end.
End Coordinator::last_word(bool stood_by) const {
  if (ended_->exit_code != 0) return *ended_;
  return {stood_by ? 0 : LaunchError::kOwnFailure,
          "the job " + single_quoted(settings_.run_id) + " ended without this node: " + ended_->reason};
}

/// Advances the state, whatever event led to it.
void Coordinator::check_progress(Time now) {
  check_invariants();
  if (phase_ == Phase::kRunning && unfinished_ == 0 && !ended_) end(0, "all workers succeeded");
  if (ended_ || resigned_ || hands_over_at_) return;
  if (phase_ == Phase::kRunning) take_joiners_along(now);
  if (phase_ == Phase::kStopping && ready_ == nodes_.size()) {
    judge_stall();
    if (ended_) return;
    phase_ = Phase::kPausing;
    pause_end_ = now + pause_;
  }
  if (phase_ == Phase::kPausing && now >= pause_end_) begin_forming(now);
  if (phase_ == Phase::kForming) form(now);
}

/// Those that take constant time, after each event.
void Coordinator::check_invariants() const {
  check_invariant(ready_ <= nodes_.size(), "no more nodes are ready than have joined");
  check_invariant(unfinished_ <= members_.size(),
                  "the unfinished members are at most all members of the round");
  check_invariant(members_.size() <= max_nodes(), "a round has at most --nnodes members");
  check_invariant(ranks_.size() <= nodes_.size(), "each node rank belongs to a node that has joined");
  check_invariant(by_id_.size() <= nodes_.size(), "each id belongs to a node that has joined");
  const bool has_round = phase_ != Phase::kForming && phase_ != Phase::kPausing && phase_ != Phase::kStopping;
  check_invariant(!has_round || (!members_.empty() && round_ >= first_round_),
                  "a round that runs has members");
  check_invariant(!ended_ || (ended_->exit_code >= 0 && ended_->exit_code <= 255), "an exit code has 8 bits");
}

/// Restarts for late joiners once the job is full or --last-call has passed, unless some nodes have finished.
void Coordinator::take_joiners_along(Time now) {
  if (ready_ == 0 || members_.size() >= max_nodes() || unfinished_ < members_.size() || !reaches_etcd_)
    return last_call_end_.reset();
  if (!last_call_end_) last_call_end_ = now + settings_.last_call;
  if (now < *last_call_end_ && members_.size() + ready_ < max_nodes()) return;
  stop_round(std::to_string(ready_) + (ready_ == 1 ? " node joins" : " nodes join"), milliseconds(0));
}

void Coordinator::begin_forming(Time now) {
  phase_ = Phase::kForming;
  forming_since_ = now;
  last_call_end_.reset();
  if (ready_ >= static_cast<std::size_t>(settings_.min_nodes)) return;
  for (const auto& [id, node] : nodes_)
    if (node.state != State::kLeaving) send_waiting(id);
}

void Coordinator::form(Time now) {
  const bool late = now >= forming_since_ + settings_.join_timeout;
  const bool enough = !takes_over() || has_majority();
  const bool pauses = takes_over() && now < pause_end_;  // the lost coordinator had a restart before it
  if (ready_ >= max_nodes() && enough && !pauses) return close_round();
  if (ready_ < static_cast<std::size_t>(settings_.min_nodes) || !enough) {
    last_call_end_.reset();
    if (late) end(LaunchError::kOwnFailure, describe_shortage());
    if (!late && lacks_fit_nodes(now))
      end(LaunchError::kOwnFailure,
          describe_unfit() + (settings_.spares > 0 ? "; there is no spare left" : ""));
    resigned_ = !late && !enough && now >= resigns_at_;
    return;
  }
  // Survivors of a round do not wait: more nodes may join while they run.
  milliseconds wait = round_ < 0 ? settings_.last_call : milliseconds(0);
  if (takes_over() && returned() + 1 < static_cast<std::size_t>(former_.nodes)) wait = settings_.node_timeout;
  last_call_end_ = std::min(last_call_end_.value_or(Time::max()), now + wait);
  if (pauses) last_call_end_ = std::max(*last_call_end_, pause_end_);
  if (late || now >= *last_call_end_) close_round();
}

/// Whether the job cannot begin, since too many nodes have failed their preflight. The others are to learn
/// it, so it waits for those that have not come yet, as long as their preflight may take.
bool Coordinator::lacks_fit_nodes(Time now) {
  if (has_started()) return false;  // it may wait for others that take a lost one's place
  const std::size_t places = max_nodes() + static_cast<std::size_t>(settings_.spares);
  if (unfit_.size() + static_cast<std::size_t>(settings_.min_nodes) <= places) {
    unfit_end_.reset();
    return false;
  }
  if (!unfit_end_) unfit_end_ = now + settings_.last_call + settings_.preflight_timeout;
  return now >= *unfit_end_ || nodes_.size() + unfit_.size() >= places;
}

void Coordinator::close_round() {
  check_invariant(ready_ == staying(), "all nodes are ready when a round closes");
  std::vector<Nodes::value_type*> ready;
  for (auto& entry : nodes_)
    if (entry.second.state == State::kReady) ready.push_back(&entry);
  if (ready.size() > max_nodes()) {  // members of the last round always fit
    std::sort(ready.begin(), ready.end(), [](const auto* a, const auto* b) {
      const Node &x = a->second, &y = b->second;
      return std::tuple(!x.was_in_round, x.order) < std::tuple(!y.was_in_round, y.order);
    });
    ready.resize(max_nodes());
  }
  const auto rank = [this](const auto* entry) {
    return entry->second.join.node_rank.value_or(settings_.max_nodes);
  };
  std::sort(ready.begin(), ready.end(), [rank](const auto* a, const auto* b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    const Node &x = a->second, &y = b->second;
    return x.join.node == y.join.node ? x.order < y.order : natural_less(x.join.node, y.join.node);
  });
  members_.clear();
  for (auto* entry : ready) {
    entry->second.state = State::kInRound;
    entry->second.was_in_round = true;
    members_.push_back(entry->first);
  }
  check_invariant(!members_.empty(), "a round has members");
  unfinished_ = members_.size();
  ready_ -= members_.size();
  lead_round(/*in_place=*/"");
  for (const auto& [id, node] : nodes_)
    if (node.state == State::kReady) send_waiting(id);  // it has become a spare
}

/// The round's members are known.
void Coordinator::lead_round(const std::string& in_place) {
  if (!nodes_.contains(members_.front())) return;  // its loss is being handled, and leads one or stops all
  ++round_;
  in_place_ = in_place;
  port_.reset();
  record_.reset();
  if (in_place.empty()) first_round_ = round_;
  phase_ = Phase::kLeading;
  send(members_.front(), Lead{round_});
}

/// Replaces a lost member with a spare, if the others can continue that way.
bool Coordinator::take_spare(NodeId lost, const Join& join, const std::string& reason) {
  const auto runs = [this](NodeId id) {
    const auto found = nodes_.find(id);
    return found != nodes_.end() && found->second.state == State::kInRound &&
           found->second.started >= first_round_;
  };
  if (!settings_.in_place || unfinished_ < members_.size() ||
      std::none_of(members_.begin(), members_.end(), runs))
    return false;
  Nodes::value_type* spare = nullptr;  // the first to arrive
  for (auto& entry : nodes_) {
    const Node& node = entry.second;
    const bool fits =
        node.state == State::kReady && node.join.workers == join.workers && node.join.role == join.role;
    if (fits && (spare == nullptr || node.order < spare->second.order)) spare = &entry;
  }
  if (spare == nullptr) return keep_ranks(lost, reason);
  check_invariant(ready_ > 0, "a spare is ready");
  spare->second.state = State::kInRound;
  spare->second.was_in_round = true;
  --ready_;
  std::replace(members_.begin(), members_.end(), lost, spare->first);
  if (draining_ && (draining_->node == lost || draining_->spare == lost)) draining_->spare = spare->first;
  pause_ = milliseconds(0);
  lead_round(reason + "; node " + describe_node(spare->second.join, spare->second.address) +
             " takes its ranks");
  return true;
}

/// A member was lost before the workers started.
void Coordinator::abandon_round(Time now) {
  for (const NodeId id : members_) {
    const auto found = nodes_.find(id);
    if (found == nodes_.end() || found->second.state == State::kLeaving) continue;
    found->second.state = State::kReady;
    ++ready_;
  }
  begin_forming(now);
}

void Coordinator::begin_round(int port, Time now) {
  if (!settings_.elected) return start_round(port, now);
  port_ = port;
  record_ = RoundRecord{
      {round_, static_cast<int>(members_.size()), 0, restart_count_, false, restarts_used_, {}, job()}, {}};
  for (const NodeId id : members_) record_->members.push_back(nodes_.at(id).join.id);
}

void Coordinator::recorded(int round, Time now) {
  if (phase_ == Phase::kLeading && round == round_ && port_ && !ended_ && !resigned_)
    start_round(*std::exchange(port_, std::nullopt), now);
}

void Coordinator::start_round(int port, Time now) {
  check_invariant(phase_ == Phase::kLeading, "a round starts once its leader has a port");
  if (takes_over()) voters_ = former_members();
  std::erase_if(former_voters_, [this](const auto& former) {
    return std::ranges::none_of(former.second, [&](NodeId id) {
      const auto node = nodes_.find(id);
      return node != nodes_.end() && node->second.begun < former.first;
    });
  });
  former_voters_.emplace_back(round_, std::exchange(voters_, members_));
  left_ = 0;
  phase_ = Phase::kRunning;
  running_since_ = now;
  last_call_end_.reset();
  Start start;  // as the next member gets it
  start.world_size = 0;
  start.number = round_;
  start.in_place = !in_place_.empty();
  start.reason = in_place_;
  start.group_world_size = static_cast<int>(members_.size());
  start.master_addr = nodes_.at(members_.front()).address;
  start.master_port = port;
  start.run_id = settings_.run_id;
  start.job = job();
  start.restart_count = restart_count_;
  start.restarts_used = restarts_used_;
  start.max_restarts = settings_.restarts.max_restarts;
  const auto own = by_id_.find(settings_.own_id);
  start.coordinator_stands_by =
      !settings_.own_id.empty() && (own == by_id_.end() || std::ranges::count(members_, own->second) == 0);
  std::map<std::string, int> role_sizes, role_ranks;
  for (const NodeId id : members_) {
    const Join& join = nodes_.at(id).join;
    start.world_size += join.workers;
    role_sizes[join.role] += join.workers;
  }
  for (const NodeId id : members_) {
    Node& node = nodes_.at(id);
    node.started = round_;
    start.first_role_rank =
        std::exchange(role_ranks[node.join.role], role_ranks[node.join.role] + node.join.workers);
    start.role_world_size = role_sizes[node.join.role];
    send(id, start);
    ++start.group_rank;
    start.first_rank += node.join.workers;
  }
  check_invariant(start.first_rank == start.world_size, "each rank belongs to one member");
}

void Coordinator::tick(Time now) {
  if (now >= next_beat_ && !ended_) {
    next_beat_ = now + Clock::duration(settings_.node_timeout) / kBeatsPerTimeout;
    std::vector<NodeId> silent;
    const Beat beat = beat_with(known_signs(), now);
    // Count beats, not time: a program that was stopped would have heard nobody.
    for (auto& [id, node] : nodes_) {
      send(id, beat);
      if (++node.missed_beats > kBeatsPerTimeout) silent.push_back(id);
    }
    for (const NodeId id : silent)
      expel(id, "no sign of life for " + in_seconds(settings_.node_timeout), now);
  }
  if (hands_over_at_ && now >= *hands_over_at_ && !ended_ && !resigned_) finish_handover(now);
  check_progress(now);
}

/// The signs of life of the job's workers, as far as every node whose workers run has told about its own.
KnownSigns Coordinator::known_signs() const {
  KnownSigns all{Time(), Time::max()};
  for (const auto& [id, node] : nodes_) {
    all.latest = std::max(all.latest, node.signs.latest);
    if (node.state == State::kInRound) all.until = std::min(all.until, node.signs.until);
  }
  return all;
}

Coordinator::Time Coordinator::next_tick() const {
  if (ended_ || resigned_) return Time::max();
  Time next = next_beat_;
  if (hands_over_at_ && (!is_held_up() || handed_left_ != left_)) next = std::min(next, *hands_over_at_);
  if (phase_ == Phase::kPausing) next = std::min(next, pause_end_);
  if (phase_ == Phase::kForming) next = std::min(next, forming_since_ + settings_.join_timeout);
  if (phase_ == Phase::kForming && unfit_end_) next = std::min(next, *unfit_end_);
  if ((phase_ == Phase::kForming || phase_ == Phase::kRunning) && last_call_end_)
    next = std::min(next, *last_call_end_);
  return next;
}

void Coordinator::send_waiting(NodeId id) {
  const bool spare = phase_ != Phase::kForming && members_.size() == max_nodes();
  send(id,
       Waiting{static_cast<int>(nodes_.size()), settings_.min_nodes, settings_.max_nodes, spare,
               static_cast<int>(settings_.node_timeout.count()), std::max(kSummaryMs, settings_.max_nodes)});
}

/// The nodes in the order of joining.
std::vector<std::string> Coordinator::describe_nodes() const {
  std::map<std::size_t, std::string> by_order;
  for (const auto& [id, node] : nodes_) by_order[node.order] = describe_node(node.join, node.address);
  std::vector<std::string> names;
  for (const auto& [order, name] : by_order) names.push_back(name);
  return names;
}

/// "node a (10.0.0.1) stays out: REASON"; "" if none does.
std::string Coordinator::describe_unfit() const {
  std::vector<std::string> reasons;
  for (const auto& [node, reason] : unfit_) reasons.push_back(reason);
  return shortened(joined(reasons, "; "), kMaxTextBytes);
}

/// Why the job cannot begin.
std::string Coordinator::describe_shortage() const {
  const std::vector<std::string> came = describe_nodes();
  if (takes_over() && !has_majority())
    return "cannot take the lost coordinator's place: " +
           (came.empty() ? "no node" : std::to_string(returned())) + " of the last round's " +
           (former_.nodes == 0 ? "" : std::to_string(former_.nodes) + " ") + "nodes came within " +
           in_seconds(settings_.join_timeout) + ", expected more than half" +
           (came.empty() ? "" : ": " + first_few(came));
  std::vector<int> missing;
  const bool by_rank =
      !elastic() && !ranks_.empty() && (ranks_.size() == nodes_.size() || !settings_.names.empty());
  for (int rank = 0; by_rank && rank < settings_.max_nodes; ++rank)
    if (ranks_.count(rank) == 0) missing.push_back(rank);
  return "only " + std::to_string(nodes_.size()) + " of " + (elastic() ? "at least " : "") +
         std::to_string(settings_.min_nodes) + " nodes joined within " + in_seconds(settings_.join_timeout) +
         " (--join-timeout): " + (came.empty() ? "none" : first_few(came)) +
         (missing.empty() ? "" : "; missing: " + describe_node_ranks(missing, settings_.names)) +
         (unfit_.empty() ? "" : "; " + describe_unfit());
}

}  // namespace ddprun::launcher
