#include "tests/launcher/rendezvous/takeover_simulation.h"

#include <algorithm>
#include <csignal>

namespace ddprun::test {
using namespace launcher;
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNodeTimeout{100}, kJoinTimeout{4000}, kBeatPause = kNodeTimeout / kBeatsPerTimeout;
const milliseconds kConnectTimeout = connect_timeout_after_loss(kNodeTimeout);  // where nobody answers
constexpr milliseconds kDelay{6};                                               // of a message, at the most
constexpr milliseconds kDisturbed{900}, kPause{300};
constexpr milliseconds kEnding{300};  // of workers, at the most
constexpr milliseconds kTick{10};
constexpr milliseconds kLongestPause{50};  // as short beside kNodeTimeout as ddprun's is
// By the slowest clock, until a silent node or coordinator is known lost; a coordinator that has lost most
// nodes, and then its nodes, that are cut off from it (docs/rendezvous.md).
constexpr milliseconds kNoticed = kNodeTimeout + kBeatPause + kTick;
constexpr milliseconds kSideBySide = 2 * kNoticed + kDelay + kEnding;
// A loss is noticed, workers end, a coordinator waits in vain, and is lost in its turn.
constexpr milliseconds kCalm = 2 * kJoinTimeout;
constexpr milliseconds kSettled = kPause + 20 * kNodeTimeout;  // the last round has ended

Endpoint endpoint_of(std::size_t host) { return {"h" + std::to_string(host), 29400}; }
std::size_t host_of(const Endpoint& endpoint) { return std::stoul(endpoint.host.substr(1)); }

}  // namespace

TakeoverSimulation::TakeoverSimulation(unsigned seed, std::vector<std::string>* trace, double slowest_clock)
    : random_(seed),
      drain_random_(seed),
      trace_(trace),
      calm_(now_ + kDisturbed),
      hosts_(2 + below(5)),
      network_(random_),
      speeds_(hosts_.size(), 1) {
  if (chance(50))
    for (double& speed : speeds_) speed = 1 - below(101) / 100. * (1 - slowest_clock);
  endpoints_ = 2 + below(static_cast<unsigned>(std::min<std::size_t>(hosts_.size(), 3)) - 1);
  settings_.run_id = "job";
  const bool elastic = chance(60);
  settings_.spares = elastic ? chance(30) : hosts_.size() > 2;
  settings_.max_nodes = static_cast<int>(hosts_.size()) - (elastic ? 0 : settings_.spares);
  settings_.min_nodes = elastic ? 1 : settings_.max_nodes;
  settings_.in_place = chance(50);
  settings_.has_successors = true;
  settings_.join_timeout = kJoinTimeout;
  settings_.last_call = up_to(60);
  settings_.node_timeout = kNodeTimeout;
  settings_.restarts.max_restarts = static_cast<int>(below(3));
}

void TakeoverSimulation::after(Clock::duration delay, std::function<void()> action) {
  events_.push({now_ + delay, next_order_++, std::move(action)});
}

void TakeoverSimulation::on(Host host, Milliseconds delay, std::function<void()> action) {
  after(std::chrono::duration_cast<Clock::duration>(delay / speeds_[host]),
        [this, life = life_of(host), action = std::move(action)] { act(life, action); });
}

void TakeoverSimulation::act(Life life, const std::function<void()>& action) {
  const Program& program = hosts_[life.first];
  if (!program.alive || program.life != life.second) return;
  if (now_ >= program.paused_until) return action();
  after(program.paused_until - now_, [this, life, action] { act(life, action); });
}

void TakeoverSimulation::note(Host host, const std::string& line) {
  if (trace_ == nullptr) return;
  const auto time = std::chrono::duration_cast<Milliseconds>(now_ - start_).count();
  trace_->push_back(std::to_string(time) + " ms: h" + std::to_string(host) + " " + line);
}

void TakeoverSimulation::run() {
  for (Host host = 0; host < hosts_.size(); ++host)
    on(host, up_to(chance(80) ? 20 : 400), [this, host] { begin(host); });
  for (unsigned i = below(8); i > 0; --i)
    after(up_to(static_cast<unsigned>(kDisturbed.count())), [this] { disturb(); });
  for (unsigned i = drain_random_() % 4; i > 0; --i)
    after(Milliseconds(drain_random_() % static_cast<unsigned>(kDisturbed.count())),
          [this, host = drain_random_() % hosts_.size()] { drain(host); });
  after(kDisturbed, [this] { network_.mend(); });
  after(kDisturbed + by_slowest(kSettled), [this] { check_progress(); });
  while (!events_.empty()) {
    const Event next = events_.top();
    events_.pop();
    now_ = next.time;
    if (now_ > calm_ + by_slowest(kCalm)) throw BrokenPromise("a program does not end");
    next.action();
    check_workers();
  }
  for (const Program& program : hosts_)
    if (program.alive && !program.over) throw BrokenPromise("a program waits for ever");
}

void TakeoverSimulation::disturb() {
  const Host host = below(static_cast<unsigned>(hosts_.size()));
  disturbed_ = true;
  switch (below(7)) {
    case 0:
    case 1:
      return kill(host, /*with_power=*/chance(40));
    case 2:
      hosts_[host].paused_until = now_ + up_to(kPause.count());
      return note(host, "pauses");
    case 3:
      for (Host each = 0; each < hosts_.size(); ++each)
        if (listens(each) && now_ >= hosts_[each].paused_until) return leave(each);
      return;
    default:
      cut_network();
  }
}

void TakeoverSimulation::cut_network() {
  disturbed_ = true;
  note(0, network_.cut(hosts_.size()));
  if (!chance(40)) return;
  const bool halfway = chance(50);
  if (halfway) after(up_to(250), [this] { network_.mend_halfway(); });
  after(up_to(250), [this] { network_.mend(); });
}

/// A link fails in one direction as a round is announced, and in the other one later.
void TakeoverSimulation::announce_halfway(Host coordinator) {
  disturbed_ = true;
  const Host deaf = below(static_cast<unsigned>(hosts_.size()));
  note(deaf, "hears no more of h" + std::to_string(coordinator));
  network_.cut_one_way(coordinator, deaf);
  after(up_to(150), [this, deaf, coordinator] {
    if (now_ >= calm_) return;
    note(deaf, "is not heard at h" + std::to_string(coordinator));
    network_.cut_one_way(deaf, coordinator);
  });
}

void TakeoverSimulation::kill(Host host, bool with_power) {
  Program& program = hosts_[host];
  if (!program.alive) return;
  note(host, with_power ? "loses power" : "dies");
  program.alive = false;
  if (chance(50)) after(up_to(400), [this, host] { start_again(host); });
  program.running.reset();
  program.powered = program.powered && !with_power;
  if (with_power) return;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& each = connections_[i];
    if (each.node == host && std::exchange(each.node_open, false)) {
      each.to_coordinator.emplace_back();
      carry(i, false);
    }
  }
  hang_up(host);
}

/// Its user ends the coordinator's node.
void TakeoverSimulation::leave(Host host) {
  if (!hosts_[host].coordinator->hand_over(id_of(host), SIGTERM, "its user ends it", clock(host))) return;
  note(host, "hands over");
  hosts_[host].leaves = hosts_[host].over = true;  // only its coordinator goes on
  hosts_[host].running.reset();
  deliver(host);
}

/// Somebody asks for it, on any node.
void TakeoverSimulation::drain(Host host) {
  const Host asker = drain_random_() % hosts_.size();
  const Program& program = hosts_[asker];
  if (!program.alive || program.over || !program.connection || now_ < program.paused_until) return;
  note(asker, "wants h" + std::to_string(host) + " to leave");
  send(*program.connection, Drain{1, endpoint_of(host).host});
}

/// It has ended its workers, and does not look for another coordinator.
void TakeoverSimulation::leave_drained(Host host, std::size_t connection, int round) {
  ++drains_;
  if (hosts_[host].connection == connection) send(connection, Ended{round, {}, /*drained=*/true});
  finish(host, End{0, "drained"});
}

std::string TakeoverSimulation::id_of(Host host) const {
  return endpoint_of(host).host + " " + std::to_string(hosts_[host].life);
}

/// A new program, which knows nothing of the job. At the first endpoint one that reaches no coordinator would
/// begin another job (docs/rendezvous.md).
void TakeoverSimulation::start_again(Host host) {
  const int life = hosts_[host].life + 1;
  const auto finds_coordinator = [this, host](Host other) {
    return reach(host, other) && listens(other) && now_ >= hosts_[other].paused_until;
  };
  hosts_[host].powered = true;
  if (host == 0 && !finds_coordinator(1) && (endpoints_ < 3 || !finds_coordinator(2))) return;
  note(host, "starts again");
  hosts_[host] = {};
  hosts_[host].life = life;
  begin(host);
}

bool TakeoverSimulation::carries(Host from, Host to) const {
  return hosts_[from].powered && hosts_[to].powered && network_.carries(from, to);
}

bool TakeoverSimulation::listens(Host host) const {
  const auto& coordinator = hosts_[host].coordinator;
  return hosts_[host].alive && coordinator && !coordinator->ended() && !coordinator->resigned();
}

void TakeoverSimulation::begin(Host host) {
  std::vector<Endpoint> all;
  for (Host each = 0; each < endpoints_; ++each) all.push_back(endpoint_of(each));
  hosts_[host].membership.emplace(settings_, settings_.restarts, std::move(all), clock(host));
  look(host);
}

/// For the coordinator, as a new NodeLink does.
void TakeoverSimulation::look(Host host) {
  Program& program = hosts_[host];
  program.told = program.membership->former();
  program.joined = false;
  program.search.emplace(
      Search::Settings{program.membership->endpoints(), program.membership->may_have_ended(),
                       program.membership->asking_since(), kJoinTimeout, kConnectTimeout, kLongestPause},
      clock(host));
  ask(host);
}

/// Asks the next endpoint for the coordinator.
void TakeoverSimulation::ask(Host host) {
  Program& program = hosts_[host];
  const Membership& membership = *program.membership;
  const Host to = host_of(program.search->endpoint());
  if (to == host && (!program.coordinator || program.coordinator->resigned()) &&
      membership.may_host(program.search->place(), program.search->asked_all(), clock(host))) {
    // It would begin another job (docs/rendezvous.md): its user ends it.
    if (host == 0 && program.life > 0 && !membership.lost()) return finish(host);
    note(host, "has the coordinator");
    CoordinatorSettings settings = settings_;
    if (membership.lost()) settings.lost_at = membership.asking_since();
    settings.own_id = id_of(host);
    program.coordinator.emplace(settings, clock(host));
    tick(host, ++program.term);
  }
  const bool refuses = reach(host, to) && !listens(to);
  if (reach(host, to) && listens(to) && now_ >= hosts_[to].paused_until) return connect(host, to);
  ask_next(host, refuses ? Search::Answer::kRefused : Search::Answer::kSilent,
           refuses ? up_to(3) : kConnectTimeout);
}

/// The answer comes after the delay.
void TakeoverSimulation::ask_next(Host host, Search::Answer answer, Milliseconds delay) {
  on(host, delay, [this, host, answer] {
    Program& program = hosts_[host];
    const Search::Next next = program.search->answered(answer, clock(host));
    if (program.membership->may_have_ended()) program.told.nobody_listens = program.search->nobody_listens();
    if (next.gives_up) return finish(host);
    on(host, next.pause, [this, host] { ask(host); });
  });
}

void TakeoverSimulation::connect(Host host, Host to) {
  note(host, "joins at h" + std::to_string(to));
  Program& program = hosts_[host];
  const std::size_t id = connections_.size();
  connections_.push_back({host, to, id + 1, program.life, hosts_[to].life, true, true, {}, {}});
  program.connection = id;
  program.missed_beats = 0;
  Join join;
  join.node = endpoint_of(host).host;
  join.min_nodes = settings_.min_nodes;
  join.max_nodes = settings_.max_nodes;
  join.former = program.told;
  join.id = id_of(host);
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
    const Host sender = to_node ? each.coordinator : each.node;
    const int life = to_node ? each.node_life : each.coordinator_life;
    if (life_of(receiver) != Life(receiver, life)) return;
    if (!hosts_[receiver].alive || !hosts_[each.node].powered || !hosts_[each.coordinator].powered) return;
    if (!carries(sender, receiver) || now_ < hosts_[receiver].paused_until)
      return now_ > calm_ + by_slowest(kCalm) ? void() : carry(connection, to_node);
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
    LastRound& last = last_rounds_[life_of(receiver)];
    last.failed = last.failed || (message && std::holds_alternative<Failed>(*message));
    if (const auto* succeeded = message ? std::get_if<Succeeded>(&*message) : nullptr)
      last.succeeded[each.node] = succeeded->round;
    if (message)
      coordinator.receive(each.id, *message, "10.0.0." + std::to_string(each.node), clock(receiver));
    else
      coordinator.lose(each.id, "the connection ended", clock(receiver));
    deliver(receiver);
  });
}

void TakeoverSimulation::tick(Host host, int term) {
  if (hosts_[host].term != term) return;
  auto& coordinator = *hosts_[host].coordinator;
  coordinator.tick(clock(host));
  deliver(host);
  if (coordinator.next_tick() == Time::max()) return;
  const auto wait = std::chrono::ceil<Milliseconds>(coordinator.next_tick() - clock(host));
  on(host, std::clamp(wait, Milliseconds(1), kTick), [this, host, term] { tick(host, term); });
}

void TakeoverSimulation::deliver(Host host) {
  for (auto& [id, message] : hosts_[host].coordinator->take_messages()) {
    const std::size_t connection = id - 1;
    if (const auto* start = std::get_if<Start>(&message); start != nullptr && start->group_rank == 0)
      note_start(host, *start);
    if (const auto* start = std::get_if<Start>(&message)) {
      LastRound& last = last_rounds_[life_of(host)];
      if (start->group_rank == 0) last.members.clear();
      last.number = start->number;
      last.members.insert(connections_[connection].node);
    }
    if (std::holds_alternative<Stop>(message))
      last_rounds_[life_of(host)].first = last_rounds_[life_of(host)].number + 1;
    if (const auto* end = std::get_if<End>(&message)) {
      check_end(host, *end);
      succeeded_ = succeeded_ || end->exit_code == 0;
      note(host, "ends the job: " + end->reason);
    }
    connections_[connection].to_node.emplace_back(std::move(message));
    carry(connection, true);
  }
  if (!hosts_[host].coordinator->resigned()) return;
  hang_up(host);
  if (std::exchange(hosts_[host].leaves, false)) kill(host, /*with_power=*/false);
}

/// Closes the coordinator's connections.
void TakeoverSimulation::hang_up(Host host) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& each = connections_[i];
    if (each.coordinator != host || !std::exchange(each.coordinator_open, false)) continue;
    each.to_node.emplace_back();
    carry(i, true);
  }
}

/// A coordinator says it.
void TakeoverSimulation::note_start(Host coordinator, const Start& start) {
  note(coordinator, "starts round " + std::to_string(start.number) + " of " +
                        std::to_string(start.group_world_size) + " nodes");
  if (now_ < calm_ && chance(10)) announce_halfway(coordinator);
  if (!has_started(life_of(coordinator)) || starters_.back() == life_of(coordinator)) return;
  // It does not know yet that it has lost its nodes.
  on(coordinator, kNoticed, [this, coordinator] {
    if (!hosts_[coordinator].coordinator->ended()) throw BrokenPromise("two coordinators run rounds");
  });
}

/// A node has heard it. What only the coordinator's own node hears leads to nothing.
void TakeoverSimulation::note_round(Host host, Life coordinator, int nodes) {
  if ((host == coordinator.first && nodes > 1) || has_started(coordinator)) return;
  starters_.push_back(coordinator);
  last_start_ = now_;
}

/// All members, or a node that is being drained instead of the spare that was to take over from it.
bool TakeoverSimulation::have_succeeded(const LastRound& last) {
  const auto since = [&last](int round) {
    return [&last, round](Host host) {
      return last.succeeded.contains(host) && last.succeeded.at(host) >= round;
    };
  };
  if (std::ranges::all_of(last.members, since(last.number))) return true;
  const bool other = std::ranges::any_of(last.succeeded, [&](const auto& each) {
    return !last.members.contains(each.first) && each.second >= last.first;
  });
  return other && std::ranges::count_if(last.members, since(last.first)) + 1 >= std::ssize(last.members);
}

/// Whether the exit code has its cause.
void TakeoverSimulation::check_end(Host coordinator, const End& end) const {
  const LastRound& last = last_rounds_.at(life_of(coordinator));
  const bool unused = end.reason.find("ended without this node") != std::string::npos;
  if (end.exit_code == 0 && !have_succeeded(last))
    throw BrokenPromise("success before all nodes have succeeded");
  if (end.exit_code == 1 && !last.failed) throw BrokenPromise("a failure that nobody has told");
  if (end.exit_code == 125 && !disturbed_ && !unused) throw BrokenPromise("125 though nothing was lost");
  // Its user has ended it, and too few others were left to hand over to.
  const bool by_user = hosts_[coordinator].leaves && end.exit_code == 128 + SIGTERM;
  if (end.exit_code != 0 && end.exit_code != 1 && end.exit_code != 125 && !by_user)
    throw BrokenPromise("exit code " + std::to_string(end.exit_code));
}

/// Of a coordinator whose place another has taken.
void TakeoverSimulation::check_workers() const {
  if (starters_.size() < 2 || now_ < last_start_ + by_slowest(kSideBySide)) return;
  for (const Program& program : hosts_) {
    if (!program.alive || !program.running || now_ < program.paused_until + by_slowest(kSideBySide)) continue;
    const auto place = std::find(starters_.begin(), starters_.end(), program.running->first);
    if (place != starters_.end() && place + 1 != starters_.end())
      throw BrokenPromise("workers of a lost coordinator's round live on");
  }
}

/// When nothing has disturbed the nodes for long.
void TakeoverSimulation::check_progress() const {
  std::vector<const Program*> waiting;
  std::optional<Host> started;
  int round = -1, nodes = 0;
  bool may_host = hosts_[0].alive && !hosts_[0].over;
  for (Host host = 0; host < hosts_.size(); ++host) {
    const Program& program = hosts_[host];
    if (!program.alive || program.over || program.refused || program.drained) continue;
    waiting.push_back(&program);
    if (listens(host) && has_started(life_of(host))) started = host;
    if (!program.membership) continue;
    const FormerRound& former = program.membership->former();
    if (former.number > round) round = former.number, nodes = former.nodes;
    may_host = may_host || (host < endpoints_ && program.membership->lost());
  }
  if (started)
    for (const Program* each : waiting)
      if (!each->connection || connections_[*each->connection].coordinator != *started)
        throw BrokenPromise("a node does not come back to the coordinator");
  const auto returned = std::count_if(waiting.begin(), waiting.end(), [round](const Program* each) {
    return each->membership && each->membership->former().number == round;
  });
  if (round >= 0 && !started && may_host && waiting.size() >= static_cast<std::size_t>(settings_.min_nodes) &&
      2 * returned > nodes)
    throw BrokenPromise("nodes that can go on do not");
}

void TakeoverSimulation::hear(Host host, std::size_t connection, const CoordinatorMessage& message) {
  Program& program = hosts_[host];
  program.missed_beats = 0;
  if (program.over) return;
  if (program.drained && std::holds_alternative<Start>(message))
    throw BrokenPromise("a drained node takes part again");
  const auto say_later = [&](unsigned ms, NodeMessage answer) {
    on(host, up_to(ms), [this, host, connection, answer = std::move(answer)] {
      if (hosts_[host].connection == connection) send(connection, answer);
    });
  };
  if (const auto* waiting = std::get_if<Waiting>(&message)) {
    program.joined = true;
    program.membership->take(*waiting);
  } else if (const auto* lead = std::get_if<Lead>(&message)) {
    say_later(5, Leading{lead->round, 1});
  } else if (const auto* start = std::get_if<Start>(&message)) {
    const int round = start->number;
    const Life coordinator{connections_[connection].coordinator, connections_[connection].coordinator_life};
    note_round(host, coordinator, start->group_world_size);
    program.running = {coordinator, round};
    program.succeeded = false;
    program.membership->take(*start, clock(host));
    send(connection, Beat{.begun = round, .running = round});
    on(host, Milliseconds(20) + up_to(500), [this, &program, connection, round] {
      const auto& running = program.running;
      if (program.connection != connection || !running || running->second != round) return;
      if (now_ < calm_ && chance(10))
        send(connection, Failed{round, WorkerFailed{ExitStatus::exited(1)}, "a worker failed", chance(50)});
      else
        program.succeeded = true, send(connection, Succeeded{round});
    });
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    const int round = stop->round;
    program.membership->take(*stop, clock(host));
    on(host, up_to(30), [this, host, connection, round] {
      const auto& running = hosts_[host].running;
      if (hosts_[host].connection != connection || (running && running->second > round)) return;
      hosts_[host].running.reset();
      send(connection, Ended{round});
    });
  } else if (const auto* drained = std::get_if<Drained>(&message)) {
    program.drained = true;
    send(connection, Leave{SIGTERM});
    on(host, up_to(kEnding.count()),
       [this, host, connection, round = drained->round] { leave_drained(host, connection, round); });
  } else if (program.drained) {  // whatever else is said does not matter any more
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    refuse(host, connection, refused->reason);
  } else if (const auto* end = std::get_if<End>(&message)) {
    finish(host, *end);
  }
}

void TakeoverSimulation::refuse(Host host, std::size_t connection, const std::string& reason) {
  note(host, "is refused: " + reason);
  connections_[connection].node_open = false;
  send(connection, {});
  // The place is taken, by a program that has started again.
  const bool again =
      std::any_of(hosts_.begin(), hosts_.end(), [](const Program& each) { return each.life > 0; });
  if (again && reason.find("comes too late") != std::string::npos) return finish(host);
  if (hosts_[host].joined) return lose(host, connection, /*hung_up=*/false);
  if (!hosts_[host].succeeded && reason.find("times soon after") == std::string::npos)
    throw BrokenPromise("refused: " + reason);
  if (!hosts_[host].membership->lost()) return finish(host);
  hosts_[host].connection.reset();
  hosts_[host].refused = true;
  ask_next(host, Search::Answer::kNotOurs, Milliseconds(1));
}

/// Of the coordinator: its workers end, and it looks for another one.
void TakeoverSimulation::lose(Host host, std::size_t connection, bool hung_up) {
  Program& program = hosts_[host];
  if (program.over) return;
  note(host, "has lost h" + std::to_string(connections_[connection].coordinator));
  program.connection.reset();
  if (program.drained) return;
  if (!program.joined && program.membership->lost())
    return ask_next(host, hung_up ? Search::Answer::kHungUp : Search::Answer::kSilent, Milliseconds(1));
  const Endpoint lost = endpoint_of(connections_[connection].coordinator);
  on(host, up_to(chance(80) ? 30 : kEnding.count()),
     [this, host, hung_up, lost, &program] {  // its workers end
       program.running.reset();
       const bool ended_here = program.coordinator && program.coordinator->ended();
       if (!program.membership->look_again(lost, program.told, hung_up, ended_here, clock(host)))
         return finish(host);
       look(host);
     });
}

void TakeoverSimulation::finish(Host host, const std::optional<End>& end) {
  Program& program = hosts_[host];
  note(host, "ends with " + std::to_string(end ? end->exit_code : 125));
  if (!end && !disturbed_ && program.membership->former().number >= 0)
    throw BrokenPromise("an end without a word though nothing was lost");
  program.over = true;
  program.running.reset();
  if (program.connection) {
    connections_[*program.connection].node_open = false;
    send(*program.connection, {});
  }
}

}  // namespace ddprun::test
