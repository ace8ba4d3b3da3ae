#pragma once

#include <string>

namespace ddprun {

/// What the nodes of a job have agreed on before their workers start.
struct Round {
  int group_rank = 0;        ///< index of this node
  int group_world_size = 1;  ///< number of nodes
  int first_rank = 0;        ///< rank of this node's local rank 0
  int local_world_size = 1;  ///< workers of this node
  int world_size = 1;        ///< workers of all nodes
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
};

/// The round of a job on one node: nobody to agree with.
inline Round static_round(int workers, int master_port, std::string run_id) {
  // The address and not "localhost", whose lookup can fail or come out as ::1 on a broken host.
  return {0, 1, 0, workers, workers, "127.0.0.1", master_port, std::move(run_id)};
}

}  // namespace ddprun
