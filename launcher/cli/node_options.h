#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/settings/command.h>
#include <ddprun/common/worker_env.h>
#include "launcher/host/task_launcher.h"
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/etcd_client.h"

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

struct Options;

/// A job on several nodes: how many, and how they find each other.
struct NodesOptions : MeetingRules {
  Endpoint endpoint;  ///< of the coordinator; on one node only its name, if the user gave one
  /// The endpoints that replace it, one after the other, if it is lost.
  std::vector<Endpoint> successors;
  /// The coordinator is where etcd's election has it, not at an endpoint; nullopt: no etcd.
  std::optional<EtcdSettings> etcd;
  /// Whether this node runs the coordinator; nullopt: only if the endpoint's address is its own.
  std::optional<bool> is_host;
  /// The workers use the endpoint's port while all nodes are connected, as in torchrun's static mode.
  bool port_is_workers = false;
  std::optional<int> node_rank;
  std::string node_name;                ///< empty: the host's name
  std::string local_addr;               ///< where other nodes reach this one; empty: detected
  std::string token;                    ///< empty: none
  bool token_is_derived = false;        ///< from Slurm's variables: prevents mistakes, not attacks
  int first_local_rank = 0;             ///< several tasks per node, as with srun: this task's local rank
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

/// Reads how many nodes there are and how they find each other, from flags or else from the variables of srun
/// or mpiexec, into options.nodes, master_port, run_id and notes. Call it after values.apply(). throws
/// UsageError; IoError for --token-file
void read_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

/// What --rdzv-conf says about etcd; empty: nothing.
struct EtcdConf {
  std::string protocol, prefix;
  TlsFiles files;
};
/// The keys of --rdzv-conf that set it.
std::vector<settings::Setting> etcd_conf_keys(EtcdConf& conf);

/// --rdzv-backend=etcd: sets options.nodes.etcd. throws UsageError, IoError
void read_etcd(const settings::Values& values, const EnvLookup& environment, const EtcdConf& conf,
               Options& options);

/// The secret that a job's nodes share: from --token-file, else DDPRUN_TOKEN; empty: none.
/// throws UsageError, and IoError for --token-file
std::string read_token(const settings::Values& values, const EnvLookup& environment);

struct Options;

/// This process's place in a Slurm job step: all tasks started by one srun.
struct SlurmStep {
  std::string id;  ///< "JOB.STEP"
  int port = 0;    ///< where the nodes meet; derived from the step's id, so that steps rarely share one
  std::vector<std::string> nodes;  ///< their names
  int node = 0;                    ///< index of this node in them
  int tasks = 1;                   ///< in the step
  int task = 0;                    ///< this task's number in the step
  int node_tasks = 1;              ///< on this node
  int node_task = 0;               ///< this task's number on the node
  bool one_task_a_node() const { return tasks == static_cast<int>(nodes.size()); }
};

/// This process's job step; nullopt if the step has one task, or outside a step, such as in a batch script.
/// throws UsageError naming the variable that is missing, wrong or contradicts another
std::optional<SlurmStep> slurm_step(const EnvLookup& environment);

/// slurm_step(), or nullopt if flags name the nodes or another ddprun started this one. throws UsageError
std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment);

/// --exclude: takes those nodes out of the step, and sets options.excluded if this is one of them.
/// throws  UsageError if none remains, or if the tasks' numbers do not follow from the nodes
void drop_excluded(SlurmStep& step, const settings::Values& values, Options& options);

/// Sets the options as flags would for this task of the step.
/// throws UsageError if flags contradict the step
void apply_step(const SlurmStep& step, const settings::Values& values, Options& options);

/// What sets variables that belong together, for messages.
struct VariableSetter {
  std::string where;   ///< "in a Slurm job step"
  std::string name;    ///< "srun"
  std::string marker;  ///< the variable that shows that it has
  std::vector<const char*> variables;
};

/// throws UsageError, which names the variables that are missing if this one is
[[noreturn]] void reject_variable(const std::string& name, const std::string& expected,
                                  const VariableSetter& setter, const EnvLookup& environment);

/// The port where the nodes of a job with this number meet.
int derived_port(std::uint64_t number);

/// This process's place among the tasks that mpiexec, or another such launcher, has started.
struct MpiTask {
  const TaskLauncher* launcher = nullptr;
  int tasks = 1;
  int task = 0;                      ///< this task's number
  int node_tasks = 1;                ///< on each node
  int node_task = 0;                 ///< this task's number on its node
  std::optional<std::uint32_t> job;  ///< another number in another job; nullopt: unknown
  int nodes() const { return tasks / node_tasks; }
};

/// nullopt: there is no such launcher, or it has started one task; flags name the nodes; it is srun, and
/// slurm_step() tells more; or another ddprun has started this one.
/// throws UsageError naming the variable that is missing, wrong or contradicts another
std::optional<MpiTask> mpi_task(const settings::Values& values, const EnvLookup& environment);

/// Sets the options as flags would for this task.
///
/// endpoints   that flags give; none: from variables, with this port
/// throws      UsageError if flags contradict them, or none says where task 0 runs
void apply_task(const MpiTask& task, const settings::Values& values, const EnvLookup& environment,
                std::vector<Endpoint> endpoints, int port, Options& options);

/// throws  UsageError if the step has not that many nodes beside the job's two
void check_spares(const SlurmStep& step, const settings::Values& values, int spares);

/// Which of several hosts this one is, where a batch job of PBS or LSF, or PMIx, names them but no launcher
/// has said how many tasks there are: "one of the 2 hosts that PBS has allocated (PBS_NODEFILE)"; else empty.
std::string idle_hosts(const EnvLookup& environment);

/// Notes if ddprun, in a batch script or shell, uses only one of several nodes that Slurm or another batch
/// system has allocated.
void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

/// The parts of a list between commas outside brackets.
std::vector<std::string_view> host_list_parts(std::string_view text);

/// The names in a Slurm host list, in order: "n[1-3,7],gpu-[001-010]-ib,x". Numbers have as many digits as
/// the first of their range; if a name has several brackets, the last one varies fastest. nullopt: not a
/// list, or more than max_names
std::optional<std::vector<std::string>> expand_host_list(const std::string& text, std::size_t max_names);

/// The numbers in a Slurm task count: "2(x3),1" is 2, 2, 2, 1. nullopt: not a list, more than max_numbers, or
/// a number outside 1 to 1,000,000
std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers);

}  // namespace ddprun::launcher
