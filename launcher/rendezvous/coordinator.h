#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "launcher/rendezvous/message.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {

/// What the coordinator's node says of the job; every other node has to agree where it says anything.
struct CoordinatorSettings {
  std::string run_id;  ///< never empty
  int min_nodes = 1, max_nodes = 1;
  std::chrono::milliseconds join_timeout{600'000};  ///< until a round has to begin
  std::chrono::milliseconds last_call{30'000};      ///< for more nodes, once the least number is there
  std::chrono::milliseconds node_timeout{10'000};   ///< a silent node is lost, at the latest 1.25 times this
  RestartSettings restarts;
  std::vector<std::string> names;  ///< of the nodes by node rank, where they are known, as in Slurm; or empty
};

/// How the job has ended for all nodes.
struct JobEnd {
  int exit_code = 0;
  std::string reason;
};

/// The state of one job over all its nodes, and every decision about it. Does nothing by itself: events come
/// in with the time at which they happened, messages come out of take_messages(). Cost: constant for each
/// message; for each round linear in the number of nodes, but for one sort.
///
/// A round is formed of nodes that are ready, first of those that were in the last one, then in the order of
/// coming. Its ranks follow the node rank where it is given, then the natural order of names, then the order
/// of coming. Once closed, a round never changes: it is run, or given up for the next one.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using NodeId = std::size_t;  ///< a connection; never used again for another

  Coordinator(CoordinatorSettings settings, Time now);

  /// A node's message; the first one of a node is Join.
  ///
  /// address    where the message came from, numeric; empty: from the coordinator's own host
  void receive(NodeId id, const NodeMessage& message, const std::string& address, Time now);

  /// The connection of a node has ended; to be said of every connection.
  void lose(NodeId id, const std::string& reason, Time now);

  /// Time has passed: signs of life are sent, what has lasted too long is ended.
  void tick(Time now);
  /// When tick is wanted next.
  Time next_tick() const;

  /// The job ends for everybody, because the coordinator's own node says so. Ignored if it has ended.
  void end(int exit_code, const std::string& reason);

  /// What is to be sent since the last call, in this order.
  std::vector<std::pair<NodeId, CoordinatorMessage>> take_messages() { return std::exchange(messages_, {}); }

  const std::optional<JobEnd>& ended() const { return ended_; }

 private:
  // kForming: until enough nodes are ready. kLeading: the round is closed, its leader is to name a port.
  // kStopping: until the last worker has ended. kPausing: the pause before a restart.
  enum class Phase { kForming, kLeading, kRunning, kStopping, kPausing };
  enum class State { kReady, kInRound, kSucceeded };  // kReady: no worker of it lives
  struct Node {
    Join join;
    std::string address;
    std::size_t order = 0;  ///< of coming
    State state = State::kReady;
    bool was_in_round = false;  ///< in the last one
    int unheard_beats = 0;      ///< that were sent to it since it last said something
  };
  using Nodes = std::unordered_map<NodeId, Node>;

  void join(NodeId id, const Join& join, const std::string& address);
  std::string problem_with(const Join& join, const std::string& address) const;
  void handle(NodeId id, Node& node, const NodeMessage& message, Time now);
  void expel(NodeId id, const std::string& reason, Time now);
  void drop(NodeId id, const std::string& reason, Time now);
  void remove(Nodes::iterator gone, const std::string& reason, Time now);
  void fail(const AttemptEnd& failure, const std::string& text, Time now);
  void check_progress(Time now);
  void begin_forming(Time now);
  void form(Time now);
  void close_round();
  void give_round_up(Time now);
  void start_round(int port, Time now);
  void stop_round(const std::string& reason, std::chrono::milliseconds pause);
  void tell_waiting(NodeId id);
  std::string who_came() const;
  bool elastic() const { return settings_.min_nodes < settings_.max_nodes; }
  std::size_t max_nodes() const { return static_cast<std::size_t>(settings_.max_nodes); }
  void send(NodeId id, CoordinatorMessage message) { messages_.emplace_back(id, std::move(message)); }
  /// The node is not, or no longer, one of the job's.
  void turn_away(NodeId id, CoordinatorMessage last_word) {
    send(id, std::move(last_word));
    gone_.insert(id);
  }

  CoordinatorSettings settings_;
  Phase phase_ = Phase::kForming;
  Nodes nodes_;
  std::set<NodeId> gone_;                  ///< connections that can join no more, until they end
  std::unordered_map<int, NodeId> ranks_;  ///< node ranks that are taken
  std::vector<NodeId> members_;            ///< of the round, in the order of ranks; lost ones stay
  std::size_t next_order_ = 0;
  std::size_t ready_ = 0;       ///< nodes in that state
  std::size_t unfinished_ = 0;  ///< members in kInRound
  int round_ = -1;
  int restarts_used_ = 0;
  Time forming_since_, running_since_, pause_end_, next_beat_;
  std::optional<Time> last_call_end_;
  std::chrono::milliseconds pause_{0};
  std::vector<std::pair<NodeId, CoordinatorMessage>> messages_;
  std::optional<JobEnd> ended_;
};

}  // namespace ddprun::launcher
