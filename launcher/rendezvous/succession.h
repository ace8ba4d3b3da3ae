#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

// How the nodes of a job with several endpoints find its coordinator, and who takes the place of a lost one.

/// The endpoints in the order in which a node asks for the coordinator. A new node comes to the first one
/// last: another may have taken over. After a loss the lost one comes first, then its successors.
inline std::vector<Endpoint> in_order_of_asking(std::vector<Endpoint> endpoints,
                                                const std::optional<Endpoint>& lost) {
  const auto first = lost ? std::find(endpoints.begin(), endpoints.end(), *lost) : endpoints.begin() + 1;
  std::rotate(endpoints.begin(), first, endpoints.end());
  return endpoints;
}

/// Whether the coordinator may run at an endpoint's own host, if nobody answers there. After a loss the
/// successors have their turns one after the other.
///
/// place       in the order of asking
/// since_loss  nullopt: none was lost, and the endpoint asked last is the job's first
inline bool may_host(std::size_t place, std::size_t endpoints,
                     std::optional<std::chrono::steady_clock::duration> since_loss,
                     std::chrono::milliseconds node_timeout) {
  if (!since_loss) return place + 1 == endpoints;
  return place > 0 && *since_loss >= 2 * (static_cast<int>(place) - 1) * node_timeout;
}

}  // namespace ddprun::launcher
