#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/endpoint.h"

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

struct Options;

/// A job over several nodes: how many, and how they find each other.
struct NodesOptions : MeetingRules {
  Endpoint endpoint;  ///< of the coordinator
  /// Whether this node runs the coordinator; none: the node that the endpoint's address belongs to runs it.
  std::optional<bool> is_host;
  std::optional<int> node_rank;
  std::string node_name;          ///< empty: the host's name
  std::string local_addr;         ///< where other nodes reach this one; empty: detected
  std::string token;              ///< empty: none
  bool token_is_derived = false;  ///< from Slurm's variables: protects from mistakes, not from attackers
  int first_local_rank = 0;       ///< Slurm, several tasks a node: this task's local rank
  std::optional<int> local_world_size;              ///< and the number of tasks on this node
  std::optional<int> group_rank, group_world_size;  ///< then the node's index and count, for GROUP_RANK
  bool several() const { return max_nodes > 1; }
};

/// Limit of --nnodes.
constexpr int kMaxNodes = 100'000;

/// Reads how many nodes there are and how they find each other, from flags or else from Slurm's variables,
/// into options.nodes and what depends on it: master_port, run_id, notes. Flags that do not depend on
/// others must be set. throws UsageError; IoError for --token-file
void read_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

}  // namespace ddprun::launcher
