#include "tests/launcher/rendezvous/job_simulation.h"

#include <algorithm>
#include <array>

namespace ddprun::test {
using namespace launcher;
namespace {

constexpr unsigned kDisturbedMs = 600;
constexpr unsigned kJoinTimeoutMs = 300;
constexpr unsigned kNodeTimeoutMs = 100;
constexpr unsigned kLongestRoundMs = 500;
constexpr unsigned kDelayMs = 8;  // of a message
// A silent node is noticed, the rest stops, pauses, waits for joiners once, and runs.
constexpr unsigned kCalmMs = 3 * kNodeTimeoutMs + 3 * kJoinTimeoutMs + 2 * kLongestRoundMs;

}  // namespace

JobSimulation::JobSimulation(unsigned seed, std::vector<std::string>* trace)
    : random_(seed),
      trace_(trace),
      failures_(std::array{0u, 5u, 50u}.at(below(3))),
      in_place_(std::array{0u, 50u, 95u}.at(below(3))),
      unable_(std::array{0u, 0u, 20u}.at(below(3))),
      dead_disks_(std::array{0u, 0u, 20u}.at(below(3))),
      longest_round_ms_(std::array{20u, 100u, kLongestRoundMs}.at(below(3))),
      calm_(now_ + Milliseconds(kDisturbedMs)),
      settings_(random_settings()),
      coordinator_(settings_, now_),
      oracle_(settings_) {}

CoordinatorSettings JobSimulation::random_settings() {
  CoordinatorSettings settings;
  settings.run_id = "job";
  settings.min_nodes = 1 + static_cast<int>(below(4));
  settings.max_nodes = settings.min_nodes + static_cast<int>(chance(40) ? 0 : below(4));
  settings.join_timeout = Milliseconds(kJoinTimeoutMs);
  settings.last_call = up_to(50);
  settings.spares = chance(30) ? 1 + static_cast<int>(below(2)) : 0;
  settings.in_place = chance(50);
  settings.node_timeout = Milliseconds(kNodeTimeoutMs);
  settings.restarts.max_restarts = static_cast<int>(below(4));
  settings.restarts.backoff = up_to(20);
  return settings;
}

void JobSimulation::at(Time time, std::function<void()> action) {
  events_.push({time, next_order_++, std::move(action)});
}

void JobSimulation::note(Id id, const std::string& line) {
  if (trace_ == nullptr) return;
  const auto time = std::chrono::duration_cast<Milliseconds>(now_ - start_).count();
  trace_->push_back(std::to_string(time) + " ms: node " + std::to_string(id) + " " + line);
}

void JobSimulation::run() {
  plan();
  for (;;) {
    const Milliseconds limit(coordinator_.ended() ? kCalmMs + kNodeTimeoutMs : kCalmMs);
    if (now_ > calm_ + limit)
      throw BrokenPromise(coordinator_.ended() ? "a node is not told the end" : "the job does not end");
    const Time wanted = coordinator_.next_tick();
    const Time due = wanted == Time::max() ? wanted : std::max({wanted + lateness_, now_, stalled_until_});
    if (events_.empty() && due == Time::max()) return;
    if (events_.empty() || due <= events_.top().time) {
      now_ = due;
      tick();
    } else {
      const Event next = events_.top();
      events_.pop();
      now_ = next.time;
      next.action();
    }
  }
}

void JobSimulation::tick() {
  lateness_ = up_to(3);
  coordinator_.tick(now_);
  coordinate(0, Tick());
  if (coordinator_.next_tick() <= now_) throw BrokenPromise("a tick is wanted at once after a tick");
}

/// After each call of the coordinator: what it says is checked and sent.
void JobSimulation::coordinate(Id id, const Cause& cause) {
  const Outgoing messages = coordinator_.take_messages();
  oracle_.check(id, cause, messages, coordinator_.ended());
  for (const auto& [to, message] : messages) {
    const auto found = nodes_.find(to);
    if (found == nodes_.end()) continue;  // nonsense on a connection without a node
    Node& node = found->second;
    node.last_to_node = std::max(node.last_to_node, now_ + up_to(kDelayMs));
    at(node.last_to_node, [this, to = to, message = message] { hear(to, message); });
    const bool speaks = node.honest && node.alive && !node.silent;
    const auto* refused = std::get_if<Refused>(&message);
    if (refused != nullptr && refused->reason.find("dropped: no sign of life") != std::string::npos && speaks)
      throw BrokenPromise("node " + std::to_string(to) + " is taken for silent");
    if (const auto* lead = std::get_if<Lead>(&message)) last_round_ = lead->round;
  }
}

void JobSimulation::say(Id id, const NodeMessage& message) {
  if (nodes_.at(id).alive) put_on_its_way(id, message);
}

void JobSimulation::hang_up(Id id) {
  if (!nodes_.at(id).alive) return;
  note(id, "hangs up");
  put_on_its_way(id, {});
  nodes_.at(id).alive = false;
}

void JobSimulation::put_on_its_way(Id id, std::optional<NodeMessage> message) {
  Node& node = nodes_.at(id);
  node.last_from_node = std::max(node.last_from_node, now_ + up_to(kDelayMs));
  node.on_its_way.push_back(std::move(message));
  at(node.last_from_node, [this, id] { deliver(id); });
}

void JobSimulation::deliver(Id id) {
  if (now_ < stalled_until_) return at(stalled_until_, [this, id] { deliver(id); });
  Node& node = nodes_.at(id);
  const std::optional<NodeMessage> message = std::move(node.on_its_way.front());
  node.on_its_way.pop_front();
  if (!message) {
    coordinator_.lose(id, "the connection ended", now_);
    coordinate(id, ConnectionLost());
  } else if (!node.silent) {
    if (!std::holds_alternative<Beat>(*message))
      note(id, "message " + std::to_string(message->index()) + " arrives");
    coordinator_.receive(id, *message, node.address, now_);
    coordinate(id, *message);
  }
}

}  // namespace ddprun::test
