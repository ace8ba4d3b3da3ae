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

/// This process's place in a Slurm job step: all tasks that one srun started.
struct SlurmStep {
  std::string id;  ///< "JOB.STEP"
  int port = 0;    ///< where the nodes meet; derived from the step's id, so that steps rarely share one
  std::vector<std::string> nodes;  ///< their names
  int node = 0;                    ///< index of this node in them
  int tasks = 1;                   ///< of the step
  int task = 0;                    ///< this task's number in the step
  int node_tasks = 1;              ///< on this node
  int node_task = 0;               ///< this task's number on the node
  bool one_task_a_node() const { return tasks == static_cast<int>(nodes.size()); }
};

/// The job step of this process if it has several tasks; none: it has one, or there is no step, as in a batch
/// script. throws UsageError naming the variable that is missing, wrong or contradicts another
std::optional<SlurmStep> slurm_step(const EnvLookup& environment);

/// How many nodes Slurm has given to this batch script or shell, which runs on only one of them; 1: in a job
/// step, or without Slurm.
int slurm_idle_allocation(const EnvLookup& environment);

/// The Slurm job step whose tasks form the job; none: there is no step of several tasks, flags name the
/// nodes, or this ddprun runs inside the job of another ddprun. throws UsageError
std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment);

/// Fills in what the flags would say for this task of the step.
/// throws UsageError if flags contradict the step
void apply_step(const SlurmStep& step, const settings::Values& values, Options& options);

/// Notes that ddprun uses only one of the nodes that Slurm has allocated.
void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

}  // namespace ddprun::launcher
