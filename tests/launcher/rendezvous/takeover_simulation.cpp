#include "tests/launcher/rendezvous/takeover_simulation.h"

#include <algorithm>

#include "launcher/rendezvous/succession.h"

namespace ddprun::test {
using namespace launcher;
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNodeTimeout{100}, kJoinTimeout{1500}, kBeatPause = kNodeTimeout / kBeatsPerTimeout;
const milliseconds kConnectTimeout = connect_timeout_after_loss(kNodeTimeout);  // where nobody answers
constexpr milliseconds kDelay{6};                                               // of a message, at the most
constexpr milliseconds kDisturbed{900};
constexpr milliseconds kEnding{300};  // of workers, at the most
// A loss is noticed, workers end, a coordinator waits in vain, and is lost in its turn.
constexpr milliseconds kCalm = 4 * kJoinTimeout;

Endpoint endpoint_of(std::size_t host) { return {"h" + std::to_string(host), 29400}; }

}  // namespace

TakeoverSimulation::TakeoverSimulation(unsigned seed, std::vector<std::string>* trace)
    : random_(seed), trace_(trace), calm_(now_ + kDisturbed), hosts_(2 + below(5)), side_(hosts_.size(), 0) {
  endpoints_ = 2 + below(static_cast<unsigned>(std::min<std::size_t>(hosts_.size(), 3)) - 1);
  settings_.run_id = "job";
  settings_.min_nodes = 1;
  settings_.max_nodes = static_cast<int>(hosts_.size());
  settings_.spares = chance(30) ? 1 : 0;
  settings_.in_place = chance(50);
  settings_.has_successors = true;
  settings_.join_timeout = kJoinTimeout;
  settings_.last_call = up_to(60);
  settings_.node_timeout = kNodeTimeout;
  settings_.restarts.max_restarts = static_cast<int>(below(3));
}

void TakeoverSimulation::after(Milliseconds delay, std::function<void()> action) {
  events_.push({now_ + delay, next_order_++, std::move(action)});
}

void TakeoverSimulation::on(Host host, Milliseconds delay, std::function<void()> action) {
  after(delay, [this, host, action = std::move(action)] {
    Program& program = hosts_[host];
    if (!program.alive) return;
    if (now_ < program.paused_until)
      return on(host, std::chrono::ceil<Milliseconds>(program.paused_until - now_), action);
    action();
  });
}

void TakeoverSimulation::note(Host host, const std::string& line) {
  if (trace_ == nullptr) return;
  const auto time = std::chrono::duration_cast<Milliseconds>(now_ - start_).count();
  trace_->push_back(std::to_string(time) + " ms: h" + std::to_string(host) + " " + line);
}

void TakeoverSimulation::run() {
  for (Host host = 0; host < hosts_.size(); ++host)
    on(host, up_to(chance(80) ? 20 : 400), [this, host] {
      hosts_[host].asking_since = now_;
      ask(host);
    });
  for (unsigned i = below(8); i > 0; --i)
    after(up_to(static_cast<unsigned>(kDisturbed.count())), [this] { disturb(); });
  after(kDisturbed, [this] { std::fill(side_.begin(), side_.end(), 0); });
  while (!events_.empty()) {
    const Event next = events_.top();
    events_.pop();
    now_ = next.time;
    if (now_ > calm_ + kCalm) throw BrokenPromise("a program does not end");
    next.action();
    check_workers();
  }
}

void TakeoverSimulation::disturb() {
  const Host host = below(static_cast<unsigned>(hosts_.size()));
  switch (below(6)) {
    case 0:
    case 1:
      return kill(host, /*with_power=*/chance(40));
    case 2:
      hosts_[host].paused_until = now_ + up_to(300);
      return note(host, "pauses");
    default:
      for (int& side : side_) side = static_cast<int>(below(2));
      note(0, "the network breaks");
      if (chance(40)) after(up_to(250), [this] { std::fill(side_.begin(), side_.end(), 0); });
  }
}

void TakeoverSimulation::kill(Host host, bool with_power) {
  Program& program = hosts_[host];
  note(host, with_power ? "loses power" : "dies");
  program.alive = false;
  program.running.reset();
  program.powered = program.powered && !with_power;
  if (with_power) return;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& each = connections_[i];
    if (each.node == host && std::exchange(each.node_open, false)) {
      each.to_coordinator.emplace_back();
      carry(i, false);
    }
    if (each.coordinator == host && std::exchange(each.coordinator_open, false)) {
      each.to_node.emplace_back();
      carry(i, true);
    }
  }
}

bool TakeoverSimulation::reach(Host a, Host b) const {
  return a == b || (hosts_[a].powered && hosts_[b].powered && side_[a] == side_[b]);
}

/// Asks the next endpoint for the coordinator.
void TakeoverSimulation::ask(Host host) {
  Program& program = hosts_[host];
  if (program.asked.empty()) {
    std::vector<Endpoint> all;
    for (Host each = 0; each < endpoints_; ++each) all.push_back(endpoint_of(each));
    const auto lost = program.lost ? std::optional(endpoint_of(*program.lost)) : std::nullopt;
    for (const Endpoint& each : in_order_of_asking(all, lost))
      program.asked.push_back(static_cast<Host>(std::find(all.begin(), all.end(), each) - all.begin()));
  }
  const Host to = program.asked[program.place];
  const auto since_loss = program.lost ? std::optional(now_ - program.lost_at) : std::nullopt;
  if (to == host && !program.coordinator &&
      may_host(program.place, program.asked.size(), since_loss, program.asked_all, kNodeTimeout)) {
    note(host, "has the coordinator");
    CoordinatorSettings settings = settings_;
    settings.takes_over = program.lost.has_value();
    program.coordinator.emplace(settings, now_);
    tick(host);
  }
  const bool listens = hosts_[to].alive && hosts_[to].coordinator && !hosts_[to].coordinator->ended();
  if (reach(host, to) && listens && now_ >= hosts_[to].paused_until) return connect(host, to);
  if (!std::exchange(program.asked_once, true) && program.hung_up && to == program.lost)
    program.former.nobody_listens = reach(host, to) && !listens;
  Milliseconds pause = reach(host, to) && !listens ? up_to(3) : kConnectTimeout;
  if (++program.place == program.asked.size()) {
    program.place = 0;
    program.asked_all = true;
    pause += Milliseconds(20);
    if (now_ - program.asking_since > kJoinTimeout) return finish(host);
  }
  on(host, pause, [this, host] { ask(host); });
}

void TakeoverSimulation::connect(Host host, Host to) {
  note(host, "joins at h" + std::to_string(to));
  Program& program = hosts_[host];
  const std::size_t id = connections_.size();
  connections_.push_back({host, to, id + 1, true, true, {}, {}});
  program.connection = id;
  program.missed_beats = 0;
  Join join;
  join.node = endpoint_of(host).host;
  join.min_nodes = settings_.min_nodes;
  join.max_nodes = settings_.max_nodes;
  join.former = program.former;
  send(id, join);
  beat(host, id);
}

void TakeoverSimulation::beat(Host host, std::size_t connection) {
  on(host, kBeatPause, [this, host, connection] {
    Program& program = hosts_[host];
    if (program.connection != connection || program.over) return;
    if (++program.missed_beats > kBeatsPerTimeout) {
      connections_[connection].node_open = false;
      send(connection, {});
      return lose(host, connection, /*hung_up=*/false);
    }
    send(connection, Beat());
    send(connection, Summary());
    beat(host, connection);
  });
}

void TakeoverSimulation::send(std::size_t connection, std::optional<NodeMessage> message) {
  connections_[connection].to_coordinator.push_back(std::move(message));
  carry(connection, false);
}

/// Takes the oldest message to its receiver, once the network does.
void TakeoverSimulation::carry(std::size_t connection, bool to_node) {
  after(up_to(kDelay.count()), [this, connection, to_node] {
    Connection& each = connections_[connection];
    const Host receiver = to_node ? each.node : each.coordinator;
    if (!hosts_[receiver].alive || !hosts_[each.node].powered || !hosts_[each.coordinator].powered) return;
    if (!reach(each.node, each.coordinator) || now_ < hosts_[receiver].paused_until)
      return now_ > calm_ + kCalm ? void() : carry(connection, to_node);
    if (to_node) {
      if (each.to_node.empty()) return;
      const auto message = std::move(each.to_node.front());
      each.to_node.pop_front();
      if (!each.node_open || hosts_[receiver].connection != connection) return;
      if (!message) return lose(receiver, connection, /*hung_up=*/true);
      return hear(receiver, connection, *message);
    }
    if (each.to_coordinator.empty()) return;
    const auto message = std::move(each.to_coordinator.front());
    each.to_coordinator.pop_front();
    if (!each.coordinator_open) return;
    auto& coordinator = *hosts_[receiver].coordinator;
    if (message)
      coordinator.receive(each.id, *message, "10.0.0." + std::to_string(each.node), now_);
    else
      coordinator.lose(each.id, "the connection ended", now_);
    deliver(receiver);
  });
}

void TakeoverSimulation::tick(Host host) {
  auto& coordinator = *hosts_[host].coordinator;
  coordinator.tick(now_);
  deliver(host);
  if (coordinator.next_tick() == Time::max()) return;
  const auto wait = std::chrono::ceil<Milliseconds>(coordinator.next_tick() - now_);
  on(host, std::clamp(wait, Milliseconds(1), Milliseconds(10)), [this, host] { tick(host); });
}

void TakeoverSimulation::deliver(Host host) {
  for (auto& [id, message] : hosts_[host].coordinator->take_messages()) {
    const std::size_t connection = id - 1;
    if (const auto* start = std::get_if<Start>(&message); start != nullptr && start->group_rank == 0)
      note_start(host, *start);
    if (const auto* end = std::get_if<End>(&message)) {
      succeeded_ = succeeded_ || end->exit_code == 0;
      note(host, "ends the job: " + end->reason);
    }
    connections_[connection].to_node.emplace_back(std::move(message));
    carry(connection, true);
  }
}

/// A coordinator says it.
void TakeoverSimulation::note_start(Host coordinator, const Start& start) {
  note(coordinator, "starts round " + std::to_string(start.number) + " of " +
                        std::to_string(start.group_world_size) + " nodes");
  const bool started = std::count(starters_.begin(), starters_.end(), coordinator) > 0;
  if (!started || starters_.back() == coordinator) return;
  // It has just woken, and does not know yet that it has lost its nodes.
  on(coordinator, 2 * kNodeTimeout, [this, coordinator] {
    if (!hosts_[coordinator].coordinator->ended()) throw BrokenPromise("two coordinators run rounds");
  });
}

/// A node has heard it. What only the coordinator's own node hears leads to nothing.
void TakeoverSimulation::note_round(Host host, Host coordinator, int nodes) {
  if (host == coordinator && nodes > 1) return;
  if (std::count(starters_.begin(), starters_.end(), coordinator) > 0) return;
  starters_.push_back(coordinator);
  last_start_ = now_;
}

/// Of a coordinator whose place another has taken.
void TakeoverSimulation::check_workers() const {
  if (starters_.size() < 2 || now_ < last_start_ + 3 * kNodeTimeout + kEnding) return;
  for (const Program& program : hosts_) {
    if (!program.alive || !program.running || now_ < program.paused_until + 3 * kNodeTimeout + kEnding)
      continue;
    const auto place = std::find(starters_.begin(), starters_.end(), program.running->first);
    if (place != starters_.end() && place + 1 != starters_.end())
      throw BrokenPromise("workers of a lost coordinator's round live on");
  }
}

void TakeoverSimulation::hear(Host host, std::size_t connection, const CoordinatorMessage& message) {
  Program& program = hosts_[host];
  program.missed_beats = 0;
  if (program.over) return;
  const auto say_later = [&](unsigned ms, NodeMessage answer) {
    on(host, up_to(ms), [this, host, connection, answer = std::move(answer)] {
      if (hosts_[host].connection == connection) send(connection, answer);
    });
  };
  if (const auto* lead = std::get_if<Lead>(&message)) {
    say_later(5, Leading{lead->round, 1});
  } else if (const auto* start = std::get_if<Start>(&message)) {
    const int round = start->number;
    note_round(host, connections_[connection].coordinator, start->group_world_size);
    program.running = {connections_[connection].coordinator, round};
    program.in_round = true;
    program.former = {round, start->group_world_size, start->group_rank, start->restart_count, false};
    on(host, Milliseconds(20) + up_to(500), [this, host, connection, round] {
      const auto& running = hosts_[host].running;
      if (hosts_[host].connection != connection || !running || running->second != round) return;
      if (now_ < calm_ && chance(10))
        send(connection, Failed{round, WorkerFailed{ExitStatus::exited(1)}, "a worker failed", chance(50)});
      else
        send(connection, Succeeded{round});
    });
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    const int round = stop->round;
    on(host, up_to(30), [this, host, connection, round] {
      if (hosts_[host].connection != connection) return;
      hosts_[host].running.reset();
      send(connection, Ended{round});
    });
  } else if (std::holds_alternative<End>(message) || std::holds_alternative<Refused>(message)) {
    finish(host);
  }
}

/// Of the coordinator: its workers end, and it looks for another one.
void TakeoverSimulation::lose(Host host, std::size_t connection, bool hung_up) {
  Program& program = hosts_[host];
  if (program.over) return;
  note(host, "has lost h" + std::to_string(connections_[connection].coordinator));
  program.connection.reset();
  program.lost = connections_[connection].coordinator;
  program.hung_up = std::exchange(program.in_round, false) && hung_up;
  program.asked_once = false;
  on(host, up_to(chance(80) ? 30 : kEnding.count()), [this, host, &program] {  // its workers end
    program.running.reset();
    if (program.former.number < 0) return finish(host);
    program.lost_at = program.asking_since = now_;
    program.asked.clear();
    program.place = 0;
    program.asked_all = false;
    ask(host);
  });
}

void TakeoverSimulation::finish(Host host) {
  Program& program = hosts_[host];
  note(host, "ends");
  program.over = true;
  program.running.reset();
  if (program.connection) {
    connections_[*program.connection].node_open = false;
    send(*program.connection, {});
  }
}

}  // namespace ddprun::test
