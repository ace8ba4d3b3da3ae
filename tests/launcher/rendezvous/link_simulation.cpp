#include "tests/launcher/rendezvous/link_simulation.h"

#include <algorithm>
#include <csignal>

#include <ddprun/common/logging.h>
#include "launcher/events/launch_error.h"
#include "tests/simulation/broken_promise.h"

namespace ddprun::test {
using namespace launcher;
namespace {

// TakeoverSimulation's times, as a NodeLink's own ones fit them.
constexpr std::chrono::milliseconds kTimeout{2000}, kWaits{40 * kTimeout}, kSlowestPacket{120};
constexpr std::chrono::milliseconds kRough{9 * kTimeout}, kLongestStop{3 * kTimeout},
    kWorkersEnd{3 * kTimeout};
constexpr std::chrono::milliseconds kGoodbye{10'000};
constexpr double kSlowest = 0.8;  // clock

/// By the slowest clock.
SimulatedHosts::Clock::duration slowly(std::chrono::milliseconds time) {
  return std::chrono::duration_cast<SimulatedHosts::Clock::duration>(time / kSlowest);
}

// docs/rendezvous.md
const auto kBothRun = slowly(2 * (kTimeout + kTimeout / kBeatsPerTimeout) + 4 * kSlowestPacket + kWorkersEnd);
const auto kAllSettled = slowly(kLongestStop + 20 * kTimeout), kLongest = slowly(2 * kWaits);

Endpoint address_of(SimulatedHosts::Host host) {
  return {SimulatedHosts::kNetwork + std::to_string(host), 29400};
}

/// That programs react to is not simulated.
const SignalFd& no_signals() {
  static const SignalFd signals({}, {});
  return signals;
}

}  // namespace

LinkSimulation::LinkSimulation(unsigned seed, std::vector<std::string>* trace)
    : random_(seed),
      trace_(trace),
      hosts_(random_, 2 + below(5), kSlowestPacket),
      start_(hosts_.now()),
      calm_(start_ + kRough) {
  static const bool quiet = (configure_logging("simulation"), true);
  (void)quiet;
  log_to([this](const std::string& line) {
    if (trace_ != nullptr) trace_->push_back("  " + line.substr(0, line.size() - 1));
  });
  const unsigned count = static_cast<unsigned>(hosts_.count());
  if (chance(50))
    for (Host host = 0; host < count; ++host) hosts_.set_speed(host, 1 - below(101) / 100. * (1 - kSlowest));
  programs_.resize(count);
  endpoints_ = 2 + below(std::min(count, 3U) - 1);
  settings_.run_id = "job";
  const bool elastic = chance(60);
  settings_.spares = elastic ? chance(30) : count > 2;
  settings_.max_nodes = static_cast<int>(count) - (elastic ? 0 : settings_.spares);
  settings_.min_nodes = elastic ? 1 : settings_.max_nodes;
  settings_.in_place = chance(50);
  settings_.has_successors = true;
  settings_.join_timeout = kWaits;
  settings_.last_call = up_to(kTimeout / 2);
  settings_.node_timeout = kTimeout;
  settings_.restarts.max_restarts = static_cast<int>(below(3));
}

LinkSimulation::~LinkSimulation() {
  for (Host host = 0; host < programs_.size(); ++host)
    if (programs_[host]) hosts_.end(host, /*with_power=*/true, [&] { programs_[host].reset(); });
  log_to({});
}

void LinkSimulation::note(Host host, const std::string& line) {
  if (trace_ == nullptr) return;
  const auto time = std::chrono::duration_cast<Milliseconds>(hosts_.now() - start_).count();
  trace_->push_back(std::to_string(time) + " ms: h" + std::to_string(host) + " " + line);
}

void LinkSimulation::run() {
  for (Host host = 0; host < programs_.size(); ++host)
    hosts_.after(up_to(chance(80) ? kTimeout / 5 : 4 * kTimeout), [this, host] { start(host); });
  for (unsigned i = below(8); i > 0; --i) hosts_.after(up_to(kRough), [this] { disturb(); });
  hosts_.after(kRough, [this] { hosts_.network().mend(); });
  hosts_.after(kRough + kAllSettled, [this] { check_progress(); });
  while (hosts_.step() && hosts_.now() <= calm_ + kLongest) check_workers();
  for (const auto& program : programs_) promise(program == nullptr, "a program does not end");
}

// -- what happens to the programs --

void LinkSimulation::disturb() {
  const Host host = below(static_cast<unsigned>(programs_.size()));
  disturbed_ = true;
  switch (below(7)) {
    case 0:
    case 1:
      return kill(host, /*with_power=*/chance(40));
    case 2:
      hosts_.pause(host, up_to(kLongestStop));
      return note(host, "pauses");
    case 3:
      for (Host each = 0; each < programs_.size(); ++each)
        if (programs_[each] && programs_[each]->server() != nullptr &&
            hosts_.now() >= hosts_.paused_until(each))
          return hosts_.on(each, Milliseconds(0), [this, each] { leave(each); });
      return;
    default:
      cut_network();
  }
}

void LinkSimulation::cut_network() {
  disturbed_ = true;
  note(0, hosts_.network().cut(programs_.size()));
  if (!chance(40)) return;
  const bool halfway = chance(50);
  if (halfway) hosts_.after(up_to(5 * kTimeout / 2), [this] { hosts_.network().mend_halfway(); });
  hosts_.after(up_to(5 * kTimeout / 2), [this] { hosts_.network().mend(); });
}

void LinkSimulation::kill(Host host, bool with_power) {
  if (!programs_[host]) return;
  note(host, with_power ? "loses power" : "dies");
  hosts_.end(host, with_power, [&] { programs_[host].reset(); });
  if (chance(50)) hosts_.after(up_to(4 * kTimeout), [this, host] { start_again(host); });
}

/// Its user ends the coordinator's node.
void LinkSimulation::leave(Host host) {
  Program& program = *programs_[host];
  const std::string id = std::to_string(host) + " " + std::to_string(hosts_.life_of(host).second);
  if (program.over || program.server() == nullptr ||
      !program.server()->hand_over(id, SIGTERM, "its user ends it"))
    return;
  note(host, "hands over");
  finish(host);
}

void LinkSimulation::start(Host host) {
  std::vector<Endpoint> all;
  for (Host each = 0; each < endpoints_; ++each) all.push_back(address_of(each));
  hosts_.make_current(host);
  programs_[host] = std::make_unique<Program>(no_signals(), settings_, std::move(all));
  look(host);
  hosts_.begin(host, programs_[host]->io, [this, host] { act(host); });
}

/// A new program, which knows nothing of the job. At the first endpoint one that reaches no coordinator would
/// begin another job (docs/rendezvous.md).
void LinkSimulation::start_again(Host host) {
  const auto finds_coordinator = [this, host](Host other) {
    const auto& program = programs_[other];
    return host != other && program && !program->over && program->server() != nullptr &&
           !program->server()->ended() && hosts_.network().carries(host, other) &&
           hosts_.network().carries(other, host) && hosts_.now() >= hosts_.paused_until(other);
  };
  if (host == 0 && !finds_coordinator(1) && (endpoints_ < 3 || !finds_coordinator(2))) return;
  note(host, "starts again");
  start(host);
}

// -- what a NodeSupervisor does --

/// For the coordinator: NodeSupervisor::connect().
void LinkSimulation::look(Host host) {
  Program& program = *programs_[host];
  const Membership& membership = program.membership;
  NodeLink::Settings settings;
  settings.endpoints = membership.endpoints();
  settings.join.run_id = settings_.run_id;
  settings.join.node = "h" + std::to_string(host);
  settings.join.min_nodes = settings_.min_nodes;
  settings.join.max_nodes = settings_.max_nodes;
  settings.join.address = address_of(host).host;
  settings.join.former = membership.former();
  settings.join.id = std::to_string(host) + " " + std::to_string(hosts_.life_of(host).second);
  settings.former_coordinator = membership.may_have_ended();
  settings.timeout = kWaits;
  settings.since = membership.asking_since();
  settings.after_loss = membership.lost().has_value();
  if (settings.after_loss)
    settings.connect_timeout = settings.greeting_timeout = connect_timeout_after_loss(kTimeout);
  settings.before_connecting = [this, host](const Endpoint& endpoint, std::size_t place, bool asked_all,
                                            const auto&) {
    return before_connecting(host, endpoint, place, asked_all);
  };
  settings.summaries = [] { return std::vector{Summary{0, "{}"}}; };
  program.links.emplace_back(program.io, program.events, std::move(settings));
}

/// Has the coordinator here, if it is this host's turn.
NodeLink::Way LinkSimulation::before_connecting(Host host, const Endpoint& endpoint, std::size_t place,
                                                bool asked_all) {
  Program& program = *programs_[host];
  const auto& lost = program.membership.lost();
  if (program.server() != nullptr || endpoint != address_of(host) ||
      !program.membership.may_host(place, asked_all, LoopClock::now()))
    return {};
  // It would begin another job (docs/rendezvous.md): its user ends it.
  if (host == 0 && hosts_.life_of(host).second > 0 && !lost)
    throw LaunchError(LaunchError::kOwnFailure, "its user ends it");
  note(host, "has the coordinator");
  CoordinatorSettings settings = settings_;
  settings.own_id = std::to_string(host) + " " + std::to_string(hosts_.life_of(host).second);
  if (lost) settings.lost_at = program.membership.asking_since();
  std::vector<UniqueFd> sockets;
  sockets.push_back(hosts_.listen(host));
  program.servers.emplace_back(program.io, std::move(settings), /*token=*/"", std::move(sockets));
  return {};
}

/// NodeSupervisor::step(), and what an attempt does with news while its workers run.
void LinkSimulation::act(Host host) {
  Program& program = *programs_[host];
  while (!program.over) {
    NodeLink& link = program.links.back();
    if (program.running) {
      const auto* message = link.peek();
      const auto* start = message == nullptr ? nullptr : std::get_if<Start>(message);
      const bool leads = message != nullptr && std::holds_alternative<Lead>(*message);
      if (!leads && (start == nullptr || !start->in_place || program.ending)) {
        if (link.end_reason()) end_workers(host);
        break;
      }
    }
    const auto news = link.next();
    if (!news) break;
    if (const auto* message = std::get_if<CoordinatorMessage>(&*news)) {
      handle(host, *message);
    } else {
      note(host, std::get<CoordinatorLost>(*news).reason);
      if (!look_again(host, std::get<CoordinatorLost>(*news).hung_up)) finish(host);
    }
  }
  const bool gone = program.servers.empty() || program.servers.back().all_gone();
  if (program.over && program.links.back().finished() && gone)
    hosts_.on(host, Milliseconds(0),
              [this, host] { hosts_.end(host, /*with_power=*/false, [&] { programs_[host].reset(); }); });
}

void LinkSimulation::handle(Host host, const CoordinatorMessage& message) {
  Program& program = *programs_[host];
  NodeLink& link = program.links.back();
  if (const auto* refused = std::get_if<Refused>(&message)) {
    note(host, "is refused: " + refused->reason);
    if (!link.has_joined() || !look_again(host, /*hung_up=*/false)) finish(host);
  } else if (const auto* waiting = std::get_if<Waiting>(&message)) {
    program.membership.take(*waiting);
  } else if (const auto* lead = std::get_if<Lead>(&message)) {
    link.send(Leading{lead->round, 1});
  } else if (const auto* start = std::get_if<Start>(&message)) {
    begin_round(host, *start);
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    program.membership.take(*stop, LoopClock::now());
    link.send(Ended{stop->round});
  } else if (const auto* end = std::get_if<End>(&message)) {
    check_end(*end, hosts_.connected_to(host));
    finish(host, *end);
  }
}

bool LinkSimulation::look_again(Host host, bool hung_up) {
  Program& program = *programs_[host];
  NodeLink& link = program.links.back();
  const bool ended_here = program.server() != nullptr && program.server()->ended();
  if (!link.was_connected() ||
      !program.membership.look_again(link.endpoint(), link.former(), hung_up, ended_here, LoopClock::now()))
    return false;
  look(host);
  return true;
}

void LinkSimulation::begin_round(Host host, const Start& start) {
  Program& program = *programs_[host];
  const Life coordinator = hosts_.connected_to(host);
  note(host, "begins round " + std::to_string(start.number) + " of " +
                 std::to_string(start.group_world_size) + " nodes of h" + std::to_string(coordinator.first));
  const bool first = std::ranges::count(starters_, coordinator) == 0;
  const bool alone = host == coordinator.first && start.group_world_size > 1;  // leads to nothing
  if (first && !alone) starters_.push_back(coordinator), last_start_ = hosts_.now();
  const Time awake = std::max(hosts_.paused_until(coordinator.first), hosts_.paused_until(host));
  promise(first || alone || starters_.back() == coordinator ||
              hosts_.now() < std::max(last_start_, awake) + kBothRun,
          "two coordinators run rounds");
  LastRound& last = last_rounds_[coordinator];
  if (start.number > last.number) last = {start.number, start.group_world_size, {}, {}};
  if (start.number == last.number) last.members.insert(host);
  program.membership.take(start, LoopClock::now());
  program.running = {coordinator, start.number};
  program.ending = false;
  if (hosts_.now() < calm_ && chance(5)) cut_network();  // it is announced halfway
  hosts_.on(host, kTimeout / 5 + up_to(5 * kTimeout),
            [this, host, attempt = ++program.attempt] { work(host, attempt); });
}

/// Its workers succeed or fail.
void LinkSimulation::work(Host host, int attempt) {
  Program& program = *programs_[host];
  if (program.attempt != attempt || !program.running || program.ending) return;
  NodeLink& link = program.links.back();
  const int round = program.running->second;
  if (hosts_.now() < calm_ && chance(10)) {
    failed_ = true;
    const bool in_place = settings_.in_place && chance(50);
    link.send(Failed{round, WorkerFailed{ExitStatus::exited(1)}, "a worker failed", in_place});
    return in_place ? void() : end_workers(host);
  }
  LastRound& last = last_rounds_[program.running->first];
  if (last.number == round) last.succeeded.insert(host);
  link.send(Succeeded{round});
  program.running.reset();
}

/// It takes a while.
void LinkSimulation::end_workers(Host host) {
  Program& program = *programs_[host];
  if (std::exchange(program.ending, true)) return;
  hosts_.on(host, up_to(chance(80) ? kWorkersEnd / 10 : kWorkersEnd), [&program, attempt = program.attempt] {
    if (program.attempt == attempt) program.running.reset();
  });
}

/// NodeSupervisor::say_goodbye().
void LinkSimulation::finish(Host host, const std::optional<End>& end) {
  Program& program = *programs_[host];
  note(host, "ends with " + (end ? std::to_string(end->exit_code) + ": " + end->reason : "125"));
  promise(end || disturbed_ || program.membership.former().number < 0,
          "an end without a word though nothing was lost");
  program.over = true;
  program.running.reset();
  succeeded_ = succeeded_ || (end && end->exit_code == 0);
  program.links.back().finish();
  hosts_.on(host, kGoodbye,
            [this, host] { hosts_.end(host, /*with_power=*/false, [&] { programs_[host].reset(); }); });
}

// -- promises --

void LinkSimulation::check_end(const End& end, Life coordinator) const {
  const auto found = last_rounds_.find(coordinator);
  const bool unused = end.reason.find("ended without this node") != std::string::npos;
  if (end.exit_code == 0) {
    promise(found != last_rounds_.end() && found->second.succeeded == found->second.members &&
                found->second.members.size() == static_cast<std::size_t>(found->second.nodes),
            "success before all nodes have succeeded");
  }
  promise(end.exit_code != 1 || failed_, "a failure that nobody has told");
  promise(end.exit_code != 125 || disturbed_ || unused, "125 though nothing was lost");
}

/// Of a coordinator whose place another has taken.
void LinkSimulation::check_workers() const {
  if (starters_.size() < 2 || hosts_.now() < last_start_ + kBothRun) return;
  for (Host host = 0; host < programs_.size(); ++host) {
    if (!programs_[host] || !programs_[host]->running) continue;
    if (hosts_.now() < hosts_.paused_until(host) + kBothRun) continue;
    const auto place = std::ranges::find(starters_, programs_[host]->running->first);
    promise(place == starters_.end() || place + 1 == starters_.end(),
            "workers of a lost coordinator's round live on");
  }
}

/// When nothing has disturbed the nodes for long: those that wait are with the coordinator that goes on.
void LinkSimulation::check_progress() const {
  for (Host host = 0; host < programs_.size(); ++host) {
    const auto& program = programs_[host];
    if (!program || program->server() == nullptr || program->server()->ended() || program->over ||
        std::ranges::count(starters_, hosts_.life_of(host)) == 0)
      continue;
    for (Host other = 0; other < programs_.size(); ++other)
      if (programs_[other] && !programs_[other]->over)
        promise(
            programs_[other]->links.back().has_joined() && hosts_.connected_to(other) == hosts_.life_of(host),
            "a node does not come back to the coordinator");
  }
}

}  // namespace ddprun::test
