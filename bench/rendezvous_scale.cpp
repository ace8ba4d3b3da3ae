// Measures what one coordinator costs with many nodes, without a network: simulated nodes answer at once.
// This covers everything the coordinator's host does for them except sockets: it decodes, handles and encodes
// messages.
//
//   rendezvous_scale [NODES...]     default: 10 100 1000 10000 100000; prints a table in Markdown
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using Id = Coordinator::NodeId;

constexpr int kWorkersPerNode = 8;
constexpr std::size_t kFrameHeader = 4;

struct Cost {
  double ms = 0;
  std::size_t messages = 0, bytes = 0;
};

struct Result {
  Cost form;     ///< from the first Join to the last Start
  Cost stop;     ///< from a failure to the last Stop
  Cost restart;  ///< from the same failure to the last Start
  Cost beat;     ///< a sign of life to and from each node
  std::size_t peak_bytes = 0;
};

std::size_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

class ManyNodes {
 public:
  explicit ManyNodes(int nodes)
      : nodes_(static_cast<std::size_t>(nodes)), coordinator_(settings(nodes), now_) {
    for (Id id = 0; id < nodes_; ++id) {
      Join join;
      join.node = "node" + std::to_string(id);
      join.min_nodes = join.max_nodes = nodes;
      join.workers = kWorkersPerNode;
      joins_.push_back(encode(NodeMessage(join)));
      order_.push_back(id);
    }
    std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
  }

  Result run() {
    const std::size_t before = heap_bytes();
    Result result;
    begin();
    for (const Id id : order_) hear(id, joins_[id]);
    lead();
    result.form = cost();

    begin();
    const AttemptEnd end = WorkerFailed{ExitStatus::exited(1)};
    hear(order_.back(), encode(NodeMessage(Failed{leader_round_, end, "rank 7 failed with exit code 1"})));
    result.stop = cost();
    const std::string ended = encode(NodeMessage(Ended{leader_round_}));
    for (const Id id : order_) hear(id, ended);
    lead();
    result.restart = cost();

    begin();
    coordinator_.tick(now_ += std::chrono::hours(1));
    send();
    const std::string beat = encode(NodeMessage(Beat()));
    for (const Id id : order_) hear(id, beat);
    result.beat = cost();

    result.peak_bytes = peak_ - before;
    if (starts_ != 2 * nodes_ || coordinator_.ended()) throw std::logic_error("two rounds were wanted");
    return result;
  }

 private:
  static CoordinatorSettings settings(int nodes) {
    CoordinatorSettings settings;
    settings.run_id = "scale";
    settings.min_nodes = settings.max_nodes = nodes;
    settings.restarts.max_restarts = 1;
    return settings;
  }

  void begin() {
    cost_ = Cost();
    begin_ = Clock::now();
  }

  Cost cost() const {
    Cost cost = cost_;
    cost.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin_).count();
    return cost;
  }

  void hear(Id id, const std::string& bytes) {
    ++cost_.messages;
    cost_.bytes += kFrameHeader + bytes.size();
    coordinator_.receive(id, decode_node_message(bytes), address(id), now_);
    send();
  }

  static std::string address(Id id) {
    return "10." + std::to_string(id >> 16 & 255) + "." + std::to_string(id >> 8 & 255) + "." +
           std::to_string(id & 255);
  }

  void send() {
    const auto messages = coordinator_.take_messages();
    if (messages.size() >= nodes_) peak_ = std::max(peak_, heap_bytes());
    for (const auto& [id, message] : messages) {
      ++cost_.messages;
      cost_.bytes += kFrameHeader + encode(message).size();
      if (std::holds_alternative<Start>(message)) ++starts_;
      if (const auto* lead = std::get_if<Lead>(&message)) {
        leader_ = id;
        leader_round_ = lead->round;
      }
    }
  }

  void lead() { hear(leader_, encode(NodeMessage(Leading{leader_round_, 29500}))); }

  std::size_t nodes_;
  Coordinator::Time now_;
  Coordinator coordinator_;
  std::vector<std::string> joins_;
  std::vector<Id> order_;  ///< in which nodes speak
  Clock::time_point begin_;
  Cost cost_;
  Id leader_ = 0;
  int leader_round_ = 0;
  std::size_t starts_ = 0, peak_ = 0;
};

/// The fastest of several runs, part by part: the others were disturbed.
Result measure(int nodes) {
  Result best;
  const int runs = std::clamp(100'000 / nodes, 5, 200);
  for (int i = 0; i < runs; ++i) {
    const Result result = ManyNodes(nodes).run();
    for (Cost Result::*part : {&Result::form, &Result::stop, &Result::restart, &Result::beat})
      if (i == 0 || (result.*part).ms < (best.*part).ms) best.*part = result.*part;
    best.peak_bytes = result.peak_bytes;
  }
  return best;
}

void print_row(int nodes) {
  const Result r = measure(nodes);
  const double n = nodes;
  std::printf(
      "| %d | %.4g | %.2f | %.1f, %.0f | %.4g | %.4g | %.2f | %.1f, %.0f | %.4g | %.2f | %.4g | %.2f |\n",
      nodes, r.form.ms, r.form.ms * 1e3 / n, static_cast<double>(r.form.messages) / n,
      static_cast<double>(r.form.bytes) / n, r.stop.ms, r.restart.ms, r.restart.ms * 1e3 / n,
      static_cast<double>(r.restart.messages) / n, static_cast<double>(r.restart.bytes) / n, r.beat.ms,
      r.beat.ms * 1e3 / n, static_cast<double>(r.peak_bytes) / 1e6,
      static_cast<double>(r.peak_bytes) / 1e3 / n);
  std::fflush(stdout);
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  std::vector<int> counts = {10, 100, 1'000, 10'000, 100'000};
  if (argc > 1) counts.clear();
  for (int i = 1; i < argc; ++i) counts.push_back(std::max(1, std::atoi(argv[i])));
  std::printf(
      "| nodes | first round, ms | µs a node | messages, bytes a node | failure to last Stop, ms | to last "
      "Start, ms "
      "| µs a node | messages, bytes a node | beats both ways, ms | µs a node | heap, peak MB | KB a node |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int nodes : counts) ddprun::launcher::print_row(nodes);
}
