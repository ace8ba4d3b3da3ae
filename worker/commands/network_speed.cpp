#include "worker/commands/network_speed.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/process_group.h>

namespace ddprun::worker {
namespace {

constexpr double kGiga = 1e9;

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One rank's end of its group.
class Exchange {
 public:
  explicit Exchange(const ddp::ProcessGroup& group)
      : group_(group),
        large_(torch::zeros({kNetworkMessage / 4}, torch::dtype(torch::kFloat).device(group.device()))),
        small_(torch::zeros({1}, large_.options())) {}

  void all_reduce(bool large) {
    std::vector<torch::Tensor> tensors = {large ? large_ : small_};
    group_.handle()->allreduce(tensors)->wait();
    settle();
  }

  /// The seconds until the other has told that it has all; only the sender's count.
  double send(int to, int times) {
    return seconds_of([&] {
      for (int i = 0; i < times; ++i) pass(large_, to, true);
      pass(small_, to, false);
    });
  }
  void receive(int from, int times) {
    for (int i = 0; i < times; ++i) pass(large_, from, false);
    pass(small_, from, true);
  }

 private:
  void pass(const torch::Tensor& tensor, int other, bool send) {
    std::vector<torch::Tensor> tensors = {tensor};
    (send ? group_.handle()->send(tensors, other, 0) : group_.handle()->recv(tensors, other, 0))->wait();
    settle();
  }
  void settle() { small_.item<float>(); }  // a GPU's stream has done it; wait() only puts it into the stream

  const ddp::ProcessGroup& group_;
  torch::Tensor large_, small_;
};

/// The link from ring[i] to the next is measured in the first, second or third turn: no rank is in two at
/// once.
std::size_t turn_of(std::size_t link, std::size_t ring) {
  return ring % 2 == 1 && link == ring - 1 ? 2 : link % 2;
}

}  // namespace

std::vector<std::vector<int>> network_rings(const std::vector<double>& nodes) {
  const bool one_node = std::ranges::all_of(nodes, [&](double node) { return node == nodes[0]; });
  std::map<double, std::size_t> seen;
  std::vector<std::vector<int>> rings;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::size_t turn = one_node ? 0 : seen[nodes[rank]]++;
    rings.resize(std::max(rings.size(), turn + 1));
    rings[turn].push_back(static_cast<int>(rank));
  }
  return rings;
}

NetworkSpeed measure_network(const ddp::ProcessGroup& group, int node, double seconds) {
  const auto size = static_cast<double>(group.size());
  const auto rings = network_rings(ddp::all_gather(group, static_cast<double>(node)));
  Exchange exchange(group);
  // Every rank repeats as often as the slowest can.
  const auto times_in = [&](double limit, double once) {
    const double slowest = ddp::all_reduce_max(group, {once})[0];
    return static_cast<int>(std::clamp(limit / std::max(slowest, 1e-9), 1.0, 10'000.0));
  };
  const auto mean_all_reduce = [&](bool large, double limit) {
    exchange.all_reduce(large);
    const int times = times_in(limit, seconds_of([&] { exchange.all_reduce(large); }));
    const double spent = seconds_of([&] {
      for (int i = 0; i < times; ++i) exchange.all_reduce(large);
    });
    return ddp::all_reduce_max(group, {spent / times})[0];
  };

  NetworkSpeed speed;
  speed.latency = mean_all_reduce(false, seconds / 10);
  const double once = mean_all_reduce(true, seconds / 2);
  speed.all_reduce = 2 * (size - 1) / size * kNetworkMessage / once / kGiga;

  const int times = times_in(seconds / 12, once);  // three turns, two directions
  std::vector<double> forward(static_cast<std::size_t>(group.size()), 0), backward = forward;
  for (std::size_t turn = 0; turn < 3; ++turn) {
    for (const auto& ring : rings)
      for (std::size_t i = 0; i < (ring.size() == 2 ? 1 : ring.size() > 2 ? ring.size() : 0); ++i) {
        const int from = ring[i], to = ring[(i + 1) % ring.size()];
        if (turn_of(i, ring.size()) != turn || (group.rank() != from && group.rank() != to)) continue;
        const bool first = group.rank() == from;
        const int other = first ? to : from;
        double& own = (first ? forward : backward)[static_cast<std::size_t>(from)];
        for (const int repeat : {1, times})  // the first connects
          if (first) {
            own = repeat * (kNetworkMessage / kGiga) / exchange.send(other, repeat);
            exchange.receive(other, repeat);
          } else {
            exchange.receive(other, repeat);
            own = repeat * (kNetworkMessage / kGiga) / exchange.send(other, repeat);
          }
      }
    ddp::any_rank_true(group, true);  // the next turn begins on all ranks at once
  }
  forward = ddp::all_reduce_sum(group, forward);
  backward = ddp::all_reduce_sum(group, backward);
  speed.link.assign(static_cast<std::size_t>(group.size()), 0);
  for (const auto& ring : rings)
    for (std::size_t i = 0; i < ring.size(); ++i)
      for (const int end : {ring[i], ring[(i + 1) % ring.size()]}) {
        const auto from = static_cast<std::size_t>(ring[i]);
        double& best = speed.link[static_cast<std::size_t>(end)];
        best = std::max(best, std::min(forward[from], backward[from]));
      }
  return speed;
}

std::vector<std::string> slow_links(const std::vector<double>& link) {
  std::vector<double> sorted;
  std::ranges::copy_if(link, std::back_inserter(sorted), [](double speed) { return speed > 0; });
  std::ranges::sort(sorted);
  std::vector<std::string> wrong(link.size());
  if (sorted.empty()) return wrong;
  const double median = sorted[sorted.size() / 2];
  for (std::size_t rank = 0; rank < link.size(); ++rank)
    if (link[rank] > 0 && link[rank] < median / 2)
      wrong[rank] =
          formatted("network: expected about %.2g GB/s to a neighbour, as half of the ranks have, got %.2g",
                    median, link[rank]);
  return wrong;
}

}  // namespace ddprun::worker
