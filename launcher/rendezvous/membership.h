#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

// How the nodes of a job with several endpoints find its coordinator, and who replaces a lost one.

/// The endpoints in the order in which a node asks for the coordinator. A new node asks the first one last,
/// because another may have taken over. After a loss the lost one comes first, then its successors.
inline std::vector<Endpoint> in_order_of_asking(std::vector<Endpoint> endpoints,
                                                const std::optional<Endpoint>& lost) {
  const auto first = lost ? std::find(endpoints.begin(), endpoints.end(), *lost) : endpoints.begin() + 1;
  std::rotate(endpoints.begin(), first, endpoints.end());
  return endpoints;
}

/// Whether an endpoint's own host may run the coordinator, if nobody answers there. After a loss the
/// successors take turns, and each asks all endpoints before it takes its own: another one may have taken
/// over while this node ended its workers.
///
/// place       in the order of asking
/// since_loss  nullopt: no loss, and the endpoint asked last is the job's first
/// asked_all   since the loss
inline bool may_host(std::size_t place, std::size_t endpoints,
                     std::optional<std::chrono::steady_clock::duration> since_loss, bool asked_all,
                     std::chrono::milliseconds node_timeout) {
  if (!since_loss) return place + 1 == endpoints;
  return asked_all && place > 0 && *since_loss >= 2 * (static_cast<int>(place) - 1) * node_timeout;
}

/// How long a node that looks for a successor waits for an endpoint whose host is silent: short enough that
/// the first one has asked them all before the second one's turn.
inline std::chrono::milliseconds connect_timeout_after_loss(std::chrono::milliseconds node_timeout) {
  return std::min(node_timeout / 4, std::chrono::milliseconds(5'000));
}

}  // namespace ddprun::launcher
