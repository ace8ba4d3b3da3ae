#include <array>
#include <csignal>

#include "tests/launcher/rendezvous/job_simulation.h"

// What the nodes do, and what is done to them.

namespace ddprun::test {
using namespace launcher;
namespace {

constexpr unsigned kMostDisturbances = 12;
constexpr std::chrono::milliseconds kPauseOfBeats{25};

}  // namespace

void JobSimulation::plan() {
  const auto most = static_cast<unsigned>(settings_.max_nodes),
             least = static_cast<unsigned>(settings_.min_nodes);
  const unsigned nodes = chance(80) ? least + below(most - least + 1) : below(most + 3);
  const bool ranked = chance(40);
  for (unsigned i = 0; i < nodes; ++i)
    after(up_to(60), [this, i, ranked] { add_node(ranked ? std::optional<int>(i) : std::nullopt); });
  const unsigned disturbances = chance(20) ? 0 : below(kMostDisturbances);
  const auto time = std::chrono::duration_cast<Milliseconds>(calm_ - now_).count();
  for (unsigned i = 0; i < disturbances; ++i)
    after(up_to(static_cast<unsigned>(time)), [this] { disturb(); });
  for (unsigned drains = below(4); drains > 0; --drains)
    after(up_to(static_cast<unsigned>(time)), [this] { drain(); });
}

void JobSimulation::disturb() {
  if (chance(35)) return add_node(chance(30) ? std::optional<int>(below(6)) : std::nullopt);
  if (chance(3)) {
    coordinator_.end(130, "SIGINT");
    return coordinate(0, HostEnds());
  }
  if (chance(15)) {
    if (now_ > stalled_until_ + Milliseconds(50)) stalled_until_ = now_ + up_to(150);
    return;
  }
  const Id id = random_node();
  switch (id == 0 ? 9 : below(5)) {
    case 0:
      return hang_up(id);
    case 1:  // both sides notice, this one by itself
      note(id, "falls silent");
      nodes_.at(id).silent = true;
      return after(Milliseconds(125), [this, id] { hang_up(id); });
    case 2:
      note(id, "leaves");
      nodes_.at(id).running.reset();
      say(id, Leave{SIGINT});
      return hang_up(id);
    case 3:
    case 4:
      return talk_nonsense(id);
    default:  // a connection that never joined
      const Id stranger = next_id_++;
      NodeMessage message = random_message();
      if (std::holds_alternative<Join>(message)) message = Beat();
      coordinator_.receive(stranger, message, "", now_);
      coordinate(stranger, message);
  }
}

/// Somebody asks for it, on any node.
void JobSimulation::drain() {
  const Id id = random_node();
  if (id == 0) return;
  note(id, "is to be drained");
  say(random_node(), Drain{1, nodes_.at(id).join.id});
}

JobSimulation::Id JobSimulation::random_node() {
  std::vector<Id> alive;
  for (const auto& [id, node] : nodes_)
    if (node.alive) alive.push_back(id);
  return alive.empty() ? 0 : alive[below(static_cast<unsigned>(alive.size()))];
}

void JobSimulation::add_node(std::optional<int> node_rank) {
  static const std::array<const char*, 5> names = {"n1", "n2", "n10", "a", ""};
  const Id id = next_id_++;
  Node& node = nodes_[id];
  Join& join = node.join;
  join.node = names.at(below(5));
  join.id = "node of number " + std::to_string(id) + ".";
  join.node_rank = node_rank;
  join.min_nodes = settings_.min_nodes + (chance(2) ? 1 : 0);
  join.max_nodes = settings_.max_nodes;
  join.workers = static_cast<int>(chance(98) ? 1 + below(4) : 0);
  join.run_id = chance(98) ? "" : "other";
  node.address = id == 1 ? "" : "10.0.0." + std::to_string(id);
  note(id, "joins");
  say(id, join);
  beat(id);
}

void JobSimulation::beat(Id id) {
  if (!nodes_.at(id).alive) return;
  say(id, Beat());
  if (chance(30)) say(id, Summary{last_round_, "{}"});
  after(kPauseOfBeats, [this, id] { beat(id); });
}

void JobSimulation::talk_nonsense(Id id) {
  const NodeMessage message = random_message();
  note(id, "talks nonsense");
  nodes_.at(id).honest = false;
  say(id, message);
  if (std::holds_alternative<Leave>(message)) after(Milliseconds(50), [this, id] { hang_up(id); });
}

NodeMessage JobSimulation::random_message() {
  const int round = last_round_ - 1 + static_cast<int>(below(3));
  switch (below(8)) {
    case 0:
      return nodes_.empty() ? Join() : nodes_.begin()->second.join;
    case 1:
      return Leading{round, 1};
    case 2:
      return Failed{round, random_failure(), "nonsense", chance(30)};
    case 3:
      return Succeeded{round};
    case 4:
      return Ended{round};
    case 5:
      return Leave{SIGTERM};
    case 6:
      return Summary{round, "nonsense"};
    default:
      return Beat();
  }
}

AttemptEnd JobSimulation::random_failure() {
  static const std::array<AttemptEnd, 9> ends = {WorkerFailed{ExitStatus::exited(1)},
                                                 WorkerFailed{ExitStatus::exited(7)},
                                                 WorkerFailed{ExitStatus::killed(SIGSEGV)},
                                                 Hung{},
                                                 TimedOut{},
                                                 SignalReceived{SIGTERM},
                                                 StartFailed{127},
                                                 EndedByPeers{},
                                                 AllSucceeded{}};
  return chance(80) ? ends.at(below(4)) : ends.at(below(9));
}

void JobSimulation::hear(Id id, const CoordinatorMessage& message) {
  Node& node = nodes_.at(id);
  if (!node.alive || node.silent) return;
  if (!std::holds_alternative<Beat>(message)) note(id, "hears message " + std::to_string(message.index()));
  if (const auto* lead = std::get_if<Lead>(&message)) {
    const int round = lead->round;
    after(up_to(10), [this, id, round] {
      if (now_ < calm_ && chance(failures_ / 10))
        say(id, Failed{round, random_failure(), "no port"});
      else
        say(id, Leading{round, 1 + static_cast<int>(below(65535))});
    });
  } else if (const auto* start = std::get_if<Start>(&message)) {
    if (node.honest && node.running && !start->in_place)
      throw BrokenPromise("a start while workers of another round live");
    if (node.honest && node.running && *node.running >= start->number)
      throw BrokenPromise("a round in place that is not newer than the workers' own");
    say(id, Beat{.begun = start->number});
    node.optional = start->in_place && (node.optional || !node.running);
    node.waits_in.reset();
    if (node.running && (node.succeeded || chance(unable_))) return decline(id, start->number);
    if (now_ < calm_ && (!node.running || node.lacks_worker) && chance(dead_disks_)) {
      node.waits_in = start->number;
      return wait_for_disk(id, start->number);
    }
    start_workers(id, start->number);
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    node.waits_in.reset();
    end_workers(id, stop->round);
  } else if (const auto* drained = std::get_if<Drained>(&message)) {
    const int round = drained->round;
    node.optional = true;
    node.waits_in.reset();
    say(id, Leave{SIGTERM});
    after(up_to(60), [this, id, round] {
      nodes_.at(id).running.reset();
      say(id, Ended{round, {}, /*drained=*/true});
      after(up_to(20), [this, id] { hang_up(id); });
    });
  } else if (std::holds_alternative<End>(message) || std::holds_alternative<Refused>(message)) {
    const auto* end = std::get_if<End>(&message);
    if (end != nullptr && end->exit_code == 0 && node.honest && node.running && !node.succeeded &&
        !node.optional)
      throw BrokenPromise("the job has succeeded while workers run");
    node.running.reset();
    node.waits_in.reset();
    after(up_to(20), [this, id] { hang_up(id); });
  }
}

/// For the disk with its program, until the others go on without this node.
void JobSimulation::wait_for_disk(Id id, int round) {
  after(Milliseconds(20), [this, id, round] {
    Node& node = nodes_.at(id);
    if (!node.alive || node.waits_in != round) return;
    if (now_ >= calm_ || chance(5)) {
      node.waits_in.reset();
      return start_workers(id, round);
    }
    say(id, Drain{0, node.join.id, "the disk does not answer"});
    wait_for_disk(id, round);
  });
}

/// Or, of a round in place, those that were lost.
void JobSimulation::start_workers(Id id, int round) {
  say(id, Beat{.running = round});
  nodes_.at(id).running = round;
  nodes_.at(id).lacks_worker = nodes_.at(id).succeeded = false;
  after(Milliseconds(1) + up_to(longest_round_ms_), [this, id, round] {
    if (nodes_.at(id).running != round || nodes_.at(id).lacks_worker) return;
    if (now_ < calm_ && chance(failures_)) {
      fail_workers(id, round);
    } else {
      nodes_.at(id).succeeded = true;
      say(id, Succeeded{round});
      if (chance(10)) hang_up(id);
    }
  });
}

void JobSimulation::fail_workers(Id id, int round) {
  const bool in_place = chance(in_place_);
  say(id, Failed{round, random_failure(), "a worker failed", in_place});
  nodes_.at(id).lacks_worker = true;
  if (!in_place && chance(50)) end_workers(id, round);  // else once it is told to
}

/// A round in place.
void JobSimulation::decline(Id id, int round) {
  note(id, "declines");
  nodes_.at(id).running = round;
  nodes_.at(id).lacks_worker = true;
  say(id, Failed{round, EndedByPeers{}, "the workers cannot continue"});
  if (chance(50)) end_workers(id, round);
}

void JobSimulation::end_workers(Id id, int round) {
  after(up_to(30), [this, id, round] {
    Node& node = nodes_.at(id);
    if (node.last_ended >= round) return;
    node.last_ended = round;
    if (node.running && *node.running <= round) node.running.reset();
    say(id, Ended{round});
  });
}

}  // namespace ddprun::test
