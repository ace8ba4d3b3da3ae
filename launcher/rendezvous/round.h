#pragma once

#include <string>

namespace ddprun::launcher {

/// What the nodes of a job agree on before their workers start, as seen by one node.
struct Round {
  int number = 0;            ///< from 0; grows with every start, sometimes by more than 1
  int group_rank = 0;        ///< index of this node
  int group_world_size = 1;  ///< number of nodes
  int first_rank = 0;        ///< rank of the first worker that this ddprun starts
  int first_local_rank = 0;  ///< not 0 if a node has several ddpruns, as with Slurm's tasks
  int workers = 1;           ///< workers that this ddprun starts
  int local_world_size = 1;  ///< workers on the node
  int world_size = 1;        ///< workers on all nodes
  int first_role_rank = 0;   ///< first_rank among the workers of this --role
  int role_world_size = 1;   ///< workers of this --role
  bool in_place = false;     ///< only lost workers are restarted; the others continue
  int restart_count = 0;     ///< after failures; number also grows when nodes come and go
  int restarts_used = 0;     ///< of max_restarts, since --restart-window last renewed them
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int max_restarts = 0;
  std::string reason;  ///< why it is in place, for the log

  bool operator==(const Round&) const = default;
};

/// The round of a job on one node. master_addr: the node's name; empty: not given
inline Round static_round(int number, int workers, const std::string& master_addr, int master_port,
                          std::string run_id) {
  Round round;
  round.number = number;
  round.workers = round.local_world_size = round.world_size = round.role_world_size = workers;
  // Not "localhost", whose lookup can fail or return ::1 on a broken host.
  round.master_addr = master_addr.empty() ? "127.0.0.1" : master_addr;
  round.master_port = master_port;
  round.run_id = std::move(run_id);
  return round;
}

}  // namespace ddprun::launcher
