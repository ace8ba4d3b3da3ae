#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "launcher/events/clock.h"
#include "launcher/events/restart_policy.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// When the nodes of a job begin, and how long they wait for each other.
struct MeetingRules {
  int min_nodes = 1, max_nodes = 1;
  int spares = 0;  ///< nodes beyond max_nodes that may stand by to replace lost ones
  std::chrono::milliseconds join_timeout{600'000};  ///< for a round to begin
  std::chrono::milliseconds last_call{30'000};  ///< how long to wait for more nodes once min_nodes are there
  /// A node is lost once it has been silent for this long (at most 1.25 times this).
  std::chrono::milliseconds node_timeout{10'000};
  std::vector<std::string> names;  ///< of the nodes by node rank, if known, as in Slurm
};

/// The job as the coordinator's node defines it; anything that other nodes specify must agree.
struct CoordinatorSettings : MeetingRules {
  std::string run_id;  ///< never empty
  /// Identifies a job without --rdzv-id: nodes that run another program do not belong to it. Empty: any.
  std::string program;
  RestartSettings restarts;
  bool in_place = false;  ///< the others continue when a spare replaces a lost one
  /// If this coordinator is lost, another may take over: if the network splits, only the larger part
  /// continues.
  bool has_successors = false;
  /// etcd has elected it (election.h): nobody else can begin a round, so no majority is needed. A round
  /// begins once etcd has its record: see take_record().
  bool elected = false;
  FormerRound former = {};  ///< the job's last round, if etcd knows of one
  /// Since when the nodes have lacked the coordinator that this one replaces. None: it is the first.
  std::optional<std::chrono::steady_clock::time_point> lost_at = {};
  std::chrono::milliseconds preflight_timeout{0};  ///< a node may take this long before it comes
  std::string own_id = {};                         ///< Join::id of the coordinator's own node; empty: unknown
};

/// The state of one job over all its nodes, and every decision about it. Pure: events come in with their
/// time, messages come out of take_messages(). A message takes constant time, a round one sort of the nodes.
///
/// A round takes ready nodes: first members of the last round, then the others in the order they joined.
/// Ranks follow the node rank if given, then the natural order of names, then the order of joining. A closed
/// round never changes: it runs, or is abandoned for the next one.
class Coordinator {
 public:
  using Clock = LoopClock;
  using Time = Clock::time_point;
  using NodeId = std::size_t;  ///< a connection; never reused

  Coordinator(CoordinatorSettings settings, Time now);

  // A job whose coordinator was lost continues with another one, which learns its state from the nodes'
  // Joins. It begins a round once more than half of the last round's nodes have come; the lost coordinator,
  // if it lives, ends the job with fewer than half. So two rounds never run side by side. A coordinator that
  // waits in vain for the others resigns: they may be with another coordinator, for which its nodes then
  // look.

  /// Handles a node's message; its first one is Join.
  ///
  /// address    of the sender, numeric; empty: the coordinator's own host
  void receive(NodeId id, const NodeMessage& message, const std::string& address, Time now);

  /// A connection has ended. Call it for every connection.
  void lose(NodeId id, const std::string& reason, Time now);

  /// Sends beats, and acts on timeouts.
  void tick(Time now);
  /// When to call tick() next.
  Time next_tick() const;

  /// Ends the job on all nodes, as the coordinator's own node wants. Ignored if it has ended.
  void end(int exit_code, const std::string& reason, bool dump_stacks = false,
           std::optional<int> user_signal = {});

  /// The user ends the coordinator's own node: if the job can go on without it, the others look for another
  /// coordinator, and this one resigns, a little later: until then it learns which others leave. False: it
  /// cannot.
  ///
  /// id      as in the node's Join
  /// signal  the user's: it ends the job, if too many leave
  bool hand_over(const std::string& id, int signal, const std::string& reason, Time now);

  /// The round that is to begin, once etcd has this; only if elected. Call recorded() then.
  std::optional<RoundRecord> take_record() { return std::exchange(record_, std::nullopt); }
  /// etcd has the record of this round: it begins.
  void recorded(int round, Time now);

  /// Whether etcd can be reached: without it no round could follow, so none is stopped for nodes that join.
  void set_reaches_etcd(bool reaches) { reaches_etcd_ = reaches; }

  /// Another coordinator has been elected, or may be.
  void resign() { resigned_ = resigned_ || !ended_; }
  /// Workers of a round run, as far as it is known.
  bool runs() const {
    return !ended_ && (phase_ == Phase::kRunning || (phase_ == Phase::kLeading && !in_place_.empty()));
  }

  /// Nodes that leave by `ddpctl drain`, and what becomes of their ranks, since the last call.
  std::vector<std::pair<std::string, std::string>> take_drains() { return std::exchange(drains_, {}); }

  /// The messages to send since the last call, in order.
  std::vector<std::pair<NodeId, CoordinatorMessage>> take_messages() { return std::exchange(messages_, {}); }

  /// How the job has ended for all nodes.
  const std::optional<End>& ended() const { return ended_; }

  /// A user's signal has ended the job, and all nodes that are still connected have ended their workers.
  bool all_ended() const;

  /// Another coordinator takes its place, or has: drop it with all its connections.
  bool resigned() const { return resigned_; }

  /// Too few nodes may be left for the job to begin, as some stay out (Join::unfit).
  bool has_unfit_nodes() const { return !unfit_.empty() && !has_started(); }

  /// The name of a node that has joined; null: no such node.
  const std::string* node_name(NodeId id) const;

  /// Whether nodes may join: not while all nodes of a fixed-size job are connected.
  bool wants_nodes() const {
    return !ended_ && !resigned_ && (elastic() || settings_.spares > 0 || phase_ == Phase::kForming);
  }

 private:
  // kForming: waiting for nodes. kLeading: the round is closed, waiting for its leader's port. kStopping:
  // waiting for the last worker to end. kPausing: before a restart.
  enum class Phase { kForming, kLeading, kRunning, kStopping, kPausing };
  // kReady: none of its workers is alive. kLeaving: it is being drained, or its user ended it; its workers
  // may live.
  enum class State { kReady, kInRound, kSucceeded, kLeaving };
  struct Node {
    Join join;
    std::string address;
    std::size_t order = 0;  ///< order of joining
    State state = State::kReady;
    bool was_in_round = false;  ///< in the last one
    bool waits = false;         ///< it leaves, and has not been told yet that the job goes on without it
    int started = -1;           ///< the last round it was told to start; -1: its workers never ran
    int begun = -1;             ///< the last round that it has acknowledged
    int running = -1;           ///< the last one that its workers are in
    int lost_state = -1;        ///< the last one in which none of its workers was left
    int succeeded = -1;         ///< the last one in which all its workers succeeded
    int missed_beats = 0;       ///< beats sent since its last message
    KnownSigns signs;           ///< of its workers
    bool has_ended = false;     ///< its workers, after the job's end
  };
  using Nodes = std::unordered_map<NodeId, Node>;
  struct Draining {
    NodeId node;
    std::string reason;
    bool failed = false;  ///< as in Drained
    /// It takes the node's ranks in a round in place. The node keeps its workers, and gets its ranks back if
    /// all spares are lost or their workers fail, until all other nodes' workers are in that round.
    std::optional<NodeId> spare = {};
    bool told = false;  ///< the node
  };

  void join(NodeId id, const Join& join, const std::string& address, Time now);
  void keep_out(NodeId id, const Join& join, const std::string& address);
  std::string problem_with(const Join& join, const std::string& address) const;
  void handle(NodeId id, Node& node, const NodeMessage& message, Time now);
  void expel(NodeId id, const std::string& reason, Time now);
  void drop(NodeId id, const std::string& reason, Time now);
  void remove(Nodes::iterator gone, const std::string& reason, Time now, std::optional<int> user_signal = {});
  void replace_member(NodeId id, const Join& join, const std::string& reason, Time now,
                      std::optional<int> user_signal);
  void fail(const Failed& failed, Time now);
  void check_progress(Time now);
  void judge_stall();
  void check_invariants() const;
  void take_joiners_along(Time now);
  void begin_forming(Time now);
  void form(Time now);
  void close_round();
  void lead_round(const std::string& in_place);
  bool take_spare(NodeId lost, const Join& join, const std::string& reason);
  void abandon_round(Time now);
  void begin_round(int port, Time now);
  void start_round(int port, Time now);
  void stop_round(const std::string& reason, std::chrono::milliseconds pause, bool dump_stacks = false,
                  std::optional<int> user_signal = {});
  void send_waiting(NodeId id);
  End last_word(bool stood_by) const;
  KnownSigns known_signs() const;
  std::vector<std::string> describe_nodes() const;
  std::string describe_shortage() const;
  bool lacks_fit_nodes(Time now);
  std::string describe_unfit() const;
  void go_on_after(const FormerRound& former, Time now);
  void finish_handover(Time now);
  void drain(NodeId asker, const Drain& wish, Time now);
  std::vector<NodeId> nodes_called(const std::string& wanted) const;
  struct DrainProblem {
    std::string text;     ///< why nothing happens; empty: the node can leave
    bool passes = false;  ///< if somebody asks again
  };
  DrainProblem drain_problem(const std::string& wanted, const std::vector<NodeId>& found,
                             bool failed = false) const;
  std::string begin_drain(NodeId id, const std::string& problem, Time now);
  bool takes_ranks(NodeId id) const;
  bool goes_on_without(NodeId id) const;
  bool runs_in_round(NodeId member) const;
  bool all_run() const;
  bool has_succeeded_meanwhile() const;
  void tell_drained(bool replaced);
  bool keep_ranks(NodeId lost, const std::string& reason);
  bool has_state(NodeId id) const;
  bool others_have_state(NodeId id) const;
  void keep_last_state(NodeId lost, const std::string& reason, Time now);
  std::string keep_needed_node(NodeId lost, const std::string& reason);
  NodeId undo_drain(NodeId lost);
  void give_up_vote(NodeId id);
  void tell_who_left();
  std::size_t staying() const;
  /// A handover waits until all workers have ended.
  bool is_held_up() const { return ready_ < nodes_.size() && staying() >= others_needed(); }
  bool has_started() const { return running_since_ != Time(); }
  bool takes_over() const { return (settings_.lost_at || former_.number >= 0) && !has_started(); }
  std::vector<NodeId> former_members() const;
  std::size_t returned() const;
  bool is_needed(NodeId id) const;
  bool has_majority() const;
  bool in_minority() const;
  /// The job as all its nodes know it, whoever has the coordinator.
  const std::string& job() const { return former_.job.empty() ? settings_.own_id : former_.job; }
  bool is_own(const Node& node) const {
    return !settings_.own_id.empty() && node.join.id == settings_.own_id;
  }
  bool elastic() const { return settings_.min_nodes < settings_.max_nodes; }
  /// How many nodes can have another coordinator: those of an elastic job may wait there for more.
  std::size_t others_needed() const { return elastic() ? 1 : static_cast<std::size_t>(settings_.min_nodes); }
  std::size_t max_nodes() const { return static_cast<std::size_t>(settings_.max_nodes); }
  void send(NodeId id, CoordinatorMessage message) { messages_.emplace_back(id, std::move(message)); }
  /// The node is not, or no longer, part of the job.
  void dismiss(NodeId id, CoordinatorMessage last_word) {
    send(id, std::move(last_word));
    gone_.insert(id);
  }

  CoordinatorSettings settings_;
  Phase phase_ = Phase::kForming;
  Nodes nodes_;
  std::set<NodeId> gone_;                  ///< connections that must not join again
  std::unordered_map<int, NodeId> ranks_;  ///< node ranks in use
  std::unordered_map<std::string, NodeId> by_id_;
  std::vector<NodeId> members_;  ///< of the round, by rank, including lost ones
  FormerRound former_;           ///< of the coordinator that this one replaces
  /// The members of the last started round, except those whose users ended them.
  std::vector<NodeId> voters_;
  int left_ = 0;  ///< those whose users ended them
  /// And of earlier rounds, with the number of the next one. Whoever was lost before it had begun that can go
  /// on with another coordinator after the earlier one; whoever was lost later (kBegun) cannot.
  std::vector<std::pair<int, std::vector<NodeId>>> former_voters_;
  static constexpr NodeId kBegun = SIZE_MAX - 1;
  std::size_t next_order_ = 0;
  std::size_t ready_ = 0;       ///< nodes in kReady
  std::size_t unfinished_ = 0;  ///< members in kInRound
  int round_ = -1;
  int first_round_ = 0;   ///< the round in which the workers of round_ began
  std::string in_place_;  ///< why round_ began with surviving workers; empty: it did not
  int restarts_used_ = 0;
  int restart_count_ = 0;
  StallWatch stalls_;
  Stop stop_;                   ///< the last one
  std::optional<End> failure_;  ///< why the round is being stopped, if all workers are to restart after it
  Reached reached_;             ///< by its workers, of those nodes that have ended them
  /// Why nodes stay out (Join::unfit), by node rank and description: one may come again.
  std::map<std::pair<std::optional<int>, std::string>, std::string> unfit_;
  std::optional<Time> unfit_end_;      ///< if too many are: how long the job waits for others to come
  std::map<std::string, int> losses_;  ///< how many times in a row a node was lost from a young round
  Time forming_since_, resigns_at_, running_since_, pause_end_, next_beat_;
  std::optional<Time> hands_over_at_;
  std::optional<int> handed_left_;      ///< left_, as the last Stop said that hands over
  End without_others_;                  ///< then, if too few are left
  std::optional<Time> last_call_end_;   ///< for kForming, and for kRunning once a node waits to join
  std::chrono::milliseconds pause_{0};  ///< before all workers restart
  std::optional<Draining> draining_;    ///< one node at a time
  int kept_in_ = -1;                    ///< the last round in which a drained node was to keep its ranks
  int drained_in_ = -1;                 ///< the round that the drained node's workers were in
  std::map<std::string, bool>
      drained_ids_;  ///< of nodes that must not come back; and whether they have failed
  std::vector<std::pair<std::string, std::string>> drains_;
  std::vector<std::pair<NodeId, CoordinatorMessage>> messages_;
  std::optional<End> ended_;
  bool resigned_ = false;
  bool reaches_etcd_ = true;
  std::optional<int> port_;  ///< of the leader of a round whose record is being written
  std::optional<RoundRecord> record_;
};

}  // namespace ddprun::launcher
