#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include "launcher/cli/options.h"
#include "launcher/host/topology.h"
#include "launcher/plan/placement.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// Finds the program as execvp(3) would: a name with a slash is a path; others are searched in search_path
/// ($PATH). throws LaunchError: not found (127) or not executable (126)
std::string find_program(const std::string& name, const std::string& search_path);

/// What every worker executes.
struct Program {
  std::string path;
  std::vector<std::string> argv;  ///< the user's words; for a script or module, after those that start Python
};

/// Scripts and modules run with `$PYTHON_EXEC -u` or `python3 -u`, as torchrun uses its own Python. In a
/// wheel, python3 is the one next to ddprun. throws LaunchError: Python, the program or the script is not
/// found (127) or not usable (126)
Program find_program(const Options& options, const EnvLookup& environment);

/// Whether a flag or variable with this name may hold a secret: the name contains, in any case, token,
/// secret, key, password, passwd or credential.
bool is_secret_name(std::string_view name);

/// A command line with "***" for the values of such flags ("--api-key=V", "--api-key V") and variables
/// ("NAME=V"), and for passwords in URLs ("scheme://user:V@host").
std::vector<std::string> redacted(const std::vector<std::string>& arguments);

/// The same for one environment variable, "NAME=value".
std::string redacted_variable(const std::string& variable);

/// redacted() as one printable line, quoted for a shell.
std::string shown_command(const std::vector<std::string>& arguments);

/// One worker, ready to start.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;
  std::vector<std::string> env;      ///< "NAME=value", the whole environment
  std::filesystem::path error_file;  ///< also in env
  bool traceable = false;            ///< debuggers may attach to get its stacks
  bool reads_stdin = false;          ///< gets ddprun's stdin instead of /dev/null
  std::vector<int> inherited_fds;    ///< besides 0 to 2; env names each
  std::vector<int> cpus;             ///< to run on; empty: all of ddprun's
};

/// What the workers of this node have in common in all rounds.
struct JobPlan {
  const Options& options;
  const std::vector<std::string>& environment;  ///< ddprun's own, "NAME=value"
  Program program;
  Topology topology;
  Placement placement = {};
  std::string job_id;                     ///< see kJobIdVariable
  std::filesystem::path timer_file = {};  ///< TORCHELASTIC_TIMER_FILE; empty: none
  std::vector<UniqueFd> states = {};      ///< --recover=rank: memory that outlives each worker, by local rank
};

/// The workers' ends of their descriptors, by index; empty: none.
struct WorkerEnds {
  std::vector<UniqueFd> heartbeats, statuses, rounds;

  /// Once the worker has inherited them.
  void close(std::size_t index) {
    for (auto* ends : {&heartbeats, &statuses, &rounds})
      if (index < ends->size()) (*ends)[index].reset();
  }
};

/// How many workers to start. throws UsageError for one per GPU without a GPU
int worker_count(const WorkersWanted& wanted, const Topology& topology);

/// The OMP_NUM_THREADS that ddprun sets; nullopt for one worker, or if the environment has it.
std::optional<int> threads_per_worker(const std::vector<std::string>& environment, const Topology& topology,
                                      int workers);

/// Whether the workers' stacks may be wanted: they are traceable, and Python dumps its stacks on SIGABRT.
bool may_hang(const Options& options);

/// This ddprun's command line without the program, after the variables that give its flags: see
/// kCommandVariable.
std::string own_command(const Options& options, const std::vector<std::string>& environment);

/// The environment that all workers of this node share, in all rounds.
std::vector<std::string> common_environment(const JobPlan& job, int workers);

/// The workers of this node by local rank.
///
/// Their environment is ddprun's without an outer launcher's variables, plus torchrun's variables, the job's
/// id (appended to an outer job's) and, unless set already, TORCH_NCCL_ASYNC_ERROR_HANDLING=1 and, for
/// several workers, OMP_NUM_THREADS: each worker's share of the CPUs (torchrun's 1 leaves CPUs idle).
///
/// error_files  of each worker; absolute
/// store_fd     bound socket of the master port, for rank 0; -1: none
std::vector<WorkerSpec> plan_workers(const JobPlan& job, const Round& round,
                                     const std::vector<std::filesystem::path>& error_files, int store_fd = -1,
                                     const WorkerEnds& ends = {});

}  // namespace ddprun::launcher
