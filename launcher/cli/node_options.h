#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/settings/command.h>
#include <ddprun/common/worker_env.h>
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

struct Options;

/// A job on several nodes: how many, and how they find each other.
struct NodesOptions : MeetingRules {
  Endpoint endpoint;  ///< of the coordinator; on one node only its name, if the user gave one
  /// The endpoints that replace it, one after the other, if it is lost.
  std::vector<Endpoint> successors;
  /// Whether this node runs the coordinator; nullopt: only if the endpoint's address is its own.
  std::optional<bool> is_host;
  /// The workers use the endpoint's port while all nodes are connected, as in torchrun's static mode.
  bool port_is_workers = false;
  std::optional<int> node_rank;
  std::string node_name;                ///< empty: the host's name
  std::string local_addr;               ///< where other nodes reach this one; empty: detected
  std::string token;                    ///< empty: none
  bool token_is_derived = false;        ///< from Slurm's variables: prevents mistakes, not attacks
  int first_local_rank = 0;             ///< Slurm, several tasks per node: this task's local rank
  std::optional<int> local_world_size;  ///< also the number of tasks on this node
  std::optional<int> group_rank, group_world_size;  ///< also the node's index and count, for GROUP_RANK
  bool several() const { return max_nodes > 1; }
  bool elastic() const { return min_nodes < max_nodes; }
};

/// The variable that contains the token. It has no flag because everyone can read command lines.
inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

/// The run id of a multi-node job without --rdzv-id, as in torchrun.
inline constexpr char kDefaultRunId[] = "none";

/// The limit for --nnodes.
constexpr int kMaxNodes = 100'000;

/// The bounds for a flag's time, such as --timeout's.
settings::Range seconds_from(int low);

/// Reads how many nodes there are and how they find each other, from flags or else from Slurm's variables,
/// into options.nodes, master_port, run_id and notes. Call it after values.apply(). throws UsageError;
/// IoError for --token-file
void read_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

/// The secret that a job's nodes share: from --token-file, else DDPRUN_TOKEN; empty: none.
/// throws UsageError, and IoError for --token-file
std::string read_token(const settings::Values& values, const EnvLookup& environment);

}  // namespace ddprun::launcher
