#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun {

/// Marks every process of a job, whatever its parent, group or session; "OUTER/INNER" for a job within a job.
inline constexpr char kJobIdVariable[] = "DDPRUN_JOB_ID";

/// The job as all its nodes know it, also after another node has taken the coordinator's place and after a
/// restart: a worker tells by it whether its own job began a run.
inline constexpr char kSharedJobIdVariable[] = "DDPRUN_SHARED_JOB_ID";

/// Beside DDPRUN_JOB_ID: which ddprun set it, so that a job that only inherited it is not taken for a job
/// within that one.
inline constexpr char kLauncherVariable[] = "DDPRUN_LAUNCHER";

/// What a launcher tells a worker: torchrun's environment variables, and ddprun's own (DDPRUN_).
struct WorkerEnv {
  int rank = 0;                           ///< RANK, 0 .. world_size-1
  int local_rank = 0;                     ///< LOCAL_RANK, 0 .. local_world_size-1
  int group_rank = 0;                     ///< GROUP_RANK, index of the node
  int role_rank = 0;                      ///< ROLE_RANK
  int world_size = 1;                     ///< WORLD_SIZE
  int local_world_size = 1;               ///< LOCAL_WORLD_SIZE
  int group_world_size = 1;               ///< GROUP_WORLD_SIZE, number of nodes
  int role_world_size = 1;                ///< ROLE_WORLD_SIZE
  std::string role_name = "default";      ///< ROLE_NAME
  std::string master_addr = "127.0.0.1";  ///< MASTER_ADDR
  int master_port = 0;                    ///< MASTER_PORT; 0 only for a process without a launcher
  int restart_count = 0;                  ///< TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;                   ///< TORCHELASTIC_MAX_RESTARTS
  std::string run_id = "none";            ///< TORCHELASTIC_RUN_ID
  std::string job;                        ///< DDPRUN_SHARED_JOB_ID; empty: another launcher's
  bool use_agent_store = false;  ///< TORCHELASTIC_USE_AGENT_STORE: rank 0 is a client of the launcher's store
  std::string error_file;        ///< TORCHELASTIC_ERROR_FILE; empty: none
  std::optional<int> store_fd;   ///< DDPRUN_STORE_FD: bound socket of master_port that rank 0 listens on
  std::optional<int> heartbeat_fd;  ///< DDPRUN_HEARTBEAT_FD: each byte written there is a sign of life
  std::optional<int> status_fd;     ///< DDPRUN_STATUS_FD: lines of JSON on its progress (status.h)
  std::optional<int> round_fd;      ///< DDPRUN_ROUND_FD: where ddprun announces new rounds
  int round = 0;                    ///< DDPRUN_ROUND: that in which it started; later ones come over round_fd
  std::optional<int> state_fd;      ///< DDPRUN_STATE_FD: memory that outlives the worker, with round_fd
};

/// The variables a launcher sets for one worker, in a fixed order.
std::vector<std::pair<std::string, std::string>> to_env(const WorkerEnv& env);

/// Every variable that to_env may set or an outer launcher may have left behind; a worker must not inherit
/// any of their values.
const std::vector<std::string>& worker_variable_names();

/// Looks up one variable; nullopt if it is not set.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Looks variables up in this process's environment.
std::optional<std::string> process_env(const std::string& name);

/// Reads what a launcher set: ddprun, torchrun, or srun with PyTorch's four variables.
///
/// Without RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT this is a single process started by hand. LOCAL_RANK
/// defaults to RANK, LOCAL_WORLD_SIZE to WORLD_SIZE, the rest as in the struct.
/// throws UsageError naming the variable, the expected and the actual value; all missing ones in one line
WorkerEnv from_env(const EnvLookup& lookup = process_env);

/// The name of this host; "unknown" if the kernel does not tell.
std::string host_name();

}  // namespace ddprun
