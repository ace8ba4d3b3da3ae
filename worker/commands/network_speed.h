#pragma once

#include <string>
#include <vector>

namespace ddprun::ddp {
class ProcessGroup;
}

namespace ddprun::worker {

/// How fast ranks exchange tensors over a group's backend.
struct NetworkSpeed {
  /// GB/s, as nccl-tests count an all-reduce ("bus bandwidth"): what each rank has to send and receive.
  double all_reduce = 0;
  double latency = 0;        ///< of an all-reduce of 4 bytes, seconds
  std::vector<double> link;  ///< GB/s by rank: with the faster of its neighbours, in the slower direction
};

/// The size of the tensors that are sent, in bytes.
constexpr int kNetworkMessage = 16 << 20;

/// Every rank of the group calls it, with the same seconds.
///
/// node     this rank's, by which ranks are paired: each exchanges with the ranks of its own turn on the next
///          and the previous node, or of all ranks if there is one node; all pairs at once, as in a ring
/// seconds  about how long it measures, beyond the time to connect and a first exchange
/// returns  the same on every rank
/// throws   what collectives do, after the group's timeout
NetworkSpeed measure_network(const ddp::ProcessGroup& group, int node, double seconds);

/// Ranks that exchange with each other, in rings, as measure_network() pairs them.
///
/// nodes  each rank's
std::vector<std::vector<int>> network_rings(const std::vector<double>& nodes);

/// By rank: empty, or what is wrong with its speed: less than half of the median. Of two ranks in a ring
/// nobody can say which is the slow one.
std::vector<std::string> slow_links(const std::vector<double>& link);

}  // namespace ddprun::worker
