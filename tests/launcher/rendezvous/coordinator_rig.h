#pragma once

#include <chrono>
#include <csignal>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;

inline CoordinatorSettings job(int min_nodes, int max_nodes, int max_restarts = 0) {
  CoordinatorSettings settings;
  settings.run_id = "job";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.restarts.max_restarts = max_restarts;
  return settings;
}

inline Failed failed(int code, int round = 0) {
  return {round, WorkerFailed{ExitStatus::exited(code)}, "rank 0 failed"};
}

inline Start start(int number, int group_rank, int nodes, int first_rank, int world_size,
                   const std::string& master_addr, int master_port, int max_restarts) {
  Start start;
  start.number = number;
  start.group_rank = group_rank;
  start.group_world_size = nodes;
  start.first_rank = first_rank;
  start.world_size = world_size;
  start.master_addr = master_addr;
  start.master_port = master_port;
  start.role_world_size = world_size;
  start.first_role_rank = first_rank;
  start.run_id = "job";
  start.max_restarts = max_restarts;
  return start;
}

/// A coordinator and nodes that say what the test wants. No time passes but in pass().
class CoordinatorRig {
 public:
  using Id = Coordinator::NodeId;

  explicit CoordinatorRig(CoordinatorSettings settings)
      : settings_(std::move(settings)), coordinator_(settings_, now_) {}

  /// What a node of this job asks for.
  Join wish(const std::string& name, int workers = 1) const {
    Join join;
    join.node = name;
    join.min_nodes = settings_.min_nodes;
    join.max_nodes = settings_.max_nodes;
    join.workers = workers;
    return join;
  }

  Join wish_of_rank(const std::string& name, int node_rank) const {
    Join join = wish(name);
    join.node_rank = node_rank;
    return join;
  }

  /// A new connection, from 10.0.0.<id>.
  Id join(const Join& join) {
    const Id id = next_id_++;
    say(id, join);
    return id;
  }
  Id join(const std::string& name) { return join(wish(name)); }

  void say(Id id, const NodeMessage& message) {
    coordinator_.receive(id, message, "10.0.0." + std::to_string(id), now_);
    collect();
  }

  void lose(Id id) {
    coordinator_.lose(id, "the connection ended", now_);
    collect();
  }

  bool hand_over(const std::string& id, int signal = SIGTERM) {
    const bool goes_on = coordinator_.hand_over(id, signal, "node a received SIGTERM", now_);
    collect();
    return goes_on;
  }

  // Of a coordinator that etcd has elected.
  std::optional<RoundRecord> take_record() { return coordinator_.take_record(); }
  void recorded(int round) {
    coordinator_.recorded(round, now_);
    collect();
  }
  void set_reaches_etcd(bool reaches) { coordinator_.set_reaches_etcd(reaches); }

  void end(int exit_code, const std::string& reason) {
    coordinator_.end(exit_code, reason);
    collect();
  }

  /// Every tick that is wanted comes, and before it a sign of life from all nodes but the silent ones.
  void pass(std::chrono::milliseconds time) {
    const auto until = now_ + time;
    for (auto next = coordinator_.next_tick(); next <= until; next = coordinator_.next_tick()) {
      now_ = std::max(now_, next);
      for (const auto& [id, messages] : got_)
        if (silent.count(id) == 0) coordinator_.receive(id, beat_of(id), "", now_);
      tick();
    }
    now_ = until;
  }

  /// The coordinator does nothing for so long, then has one tick.
  void sleep(std::chrono::milliseconds time) {
    now_ += time;
    tick();
  }

  /// Nodes obey: the leader reports a port, stopped nodes report their end.
  void obey() {
    while (!untold_.empty()) {
      const auto [id, message] = untold_.front();
      untold_.pop_front();
      if (const auto* lead = std::get_if<Lead>(&message)) say(id, Leading{lead->round, 2000 + lead->round});
      if (const auto* stop = std::get_if<Stop>(&message)) say(id, Ended{stop->round});
    }
  }

  /// Nodes of these names, with their first round running if they are enough for it at once.
  std::vector<Id> form(const std::vector<std::string>& names) {
    std::vector<Id> ids;
    for (const std::string& name : names) ids.push_back(join(name));
    obey();
    return ids;
  }

  /// How many messages of this kind the node has got.
  template <class Message>
  std::size_t count(Id id) const {
    std::size_t n = 0;
    if (const auto found = got_.find(id); found != got_.end())
      for (const auto& message : found->second) n += std::holds_alternative<Message>(message);
    return n;
  }

  /// The last of them; fails without one.
  template <class Message>
  Message last(Id id) const {
    REQUIRE(count<Message>(id) > 0);
    const auto& messages = got_.at(id);
    for (auto message = messages.rbegin();; ++message)
      if (const auto* wanted = std::get_if<Message>(&*message)) return *wanted;
  }

  /// Names the round, if the node has begun one and was not stopped.
  int round_of(Id id) const {
    int round = -1;
    if (const auto found = got_.find(id); found != got_.end())
      for (const auto& message : found->second) {
        if (const auto* start = std::get_if<Start>(&message)) round = start->number;
        if (std::holds_alternative<Stop>(message) || std::holds_alternative<End>(message)) round = -1;
      }
    return round;
  }

  std::size_t messages_to(Id id) const { return got_.count(id) == 0 ? 0 : got_.at(id).size(); }
  const std::optional<End>& ended() const { return coordinator_.ended(); }
  bool resigned() const { return coordinator_.resigned(); }
  Coordinator::Time now() const { return now_; }

  std::set<Id> silent;
  std::set<Id> deaf;   ///< have not heard of their last round
  std::set<Id> stuck;  ///< their workers do not come into a round
  /// When each node's workers last showed a sign of life, for its beats; none: they say nothing about it.
  std::map<Id, Coordinator::Time> signs;
  Beat last_beat;  ///< that a node got

  Beat beat_of(Id id) const {
    Beat beat = signs.contains(id) ? beat_with({signs.at(id), now_}, now_) : Beat{};
    if (!deaf.contains(id) && count<Start>(id) > 0) beat.begun = last<Start>(id).number;
    if (!stuck.contains(id)) beat.running = beat.begun;
    return beat;
  }

 private:
  void tick() {
    coordinator_.tick(now_);
    collect();
  }

  void collect() {
    for (auto& [id, message] : coordinator_.take_messages()) {
      if (const auto* beat = std::get_if<Beat>(&message)) {
        last_beat = *beat;
        continue;
      }
      got_[id].push_back(message);
      untold_.emplace_back(id, std::move(message));
    }
  }

  CoordinatorSettings settings_;
  Coordinator::Time now_ = Coordinator::Time() + std::chrono::hours(1);
  Coordinator coordinator_;
  Id next_id_ = 1;
  std::map<Id, std::vector<CoordinatorMessage>> got_;
  std::deque<std::pair<Id, CoordinatorMessage>> untold_;  ///< that obey() has not seen
};

/// Nodes "a" and "b" of a job of two, in their first round.
struct TwoNodes : CoordinatorRig {
  explicit TwoNodes(CoordinatorSettings settings) : CoordinatorRig(std::move(settings)) {}
  explicit TwoNodes(int max_restarts = 0) : TwoNodes(job(2, 2, max_restarts)) {}

  const std::vector<Id> ids = form({"a", "b"});
  const Id a = ids[0], b = ids[1];
};

}  // namespace ddprun::test
