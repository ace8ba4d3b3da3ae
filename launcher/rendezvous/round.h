#pragma once

#include <string>

namespace ddprun::launcher {

/// What the nodes of a job have agreed on before their workers start: one node's view.
struct Round {
  int number = 0;            ///< 0, 1, ...: grows with every start, now and then by more than 1
  int group_rank = 0;        ///< index of this node
  int group_world_size = 1;  ///< number of nodes
  int first_rank = 0;        ///< rank of the first worker that this ddprun starts
  int first_local_rank = 0;  ///< its local rank; not 0 where a node has several ddpruns, as Slurm's tasks
  int workers = 1;           ///< that this ddprun starts
  int local_world_size = 1;  ///< workers of the node
  int world_size = 1;        ///< workers of all nodes
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int max_restarts = 0;
};

/// The round of a job on one node: nobody to agree with.
inline Round static_round(int number, int workers, int master_port, std::string run_id) {
  Round round;
  round.number = number;
  round.workers = round.local_world_size = round.world_size = workers;
  // The address and not "localhost", whose lookup can fail or come out as ::1 on a broken host.
  round.master_addr = "127.0.0.1";
  round.master_port = master_port;
  round.run_id = std::move(run_id);
  return round;
}

}  // namespace ddprun::launcher
