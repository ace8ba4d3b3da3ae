#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

struct Options;

/// This process's place in a job step of Slurm's: what srun started together.
struct SlurmStep {
  std::string id;  ///< "JOB.STEP"
  int port = 0;    ///< for the nodes to meet at; another one for other steps, as far as numbers go
  std::vector<std::string> nodes;  ///< their names
  int node = 0;                    ///< index of this node in them
  int tasks = 1;                   ///< of the step
  int task = 0;                    ///< this one's number in it
  int node_tasks = 1;              ///< on this node
  int node_task = 0;               ///< this one's number there
  bool one_task_a_node() const { return tasks == static_cast<int>(nodes.size()); }
};

/// The job step that this process is a task of, if the step has several; none: it has one, or there is none,
/// as in a batch script. throws UsageError naming the variable that is missing, makes no sense, or
/// contradicts another
std::optional<SlurmStep> slurm_step(const EnvLookup& environment);

/// How many nodes Slurm has given to a batch script, or to a shell, of which this process uses only the one
/// that it is on; 1: in a job step, or without Slurm.
int slurm_idle_allocation(const EnvLookup& environment);

/// The Slurm job step that makes up the job; none: there is none of several tasks, or it is set aside, by
/// flags that say what nodes there are, or since this ddprun is in a job of another one. throws UsageError
std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment);

/// What the flags would say for this task of the step. What they do say about anything else is in the options
/// already. throws UsageError where that is for other nodes than these
void apply_step(const SlurmStep& step, const settings::Values& values, Options& options);

/// A note where ddprun runs on one of several nodes that Slurm has allocated.
void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

}  // namespace ddprun::launcher
