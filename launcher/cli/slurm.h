#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

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

/// Sets the options as flags would for this task of the step.
/// throws UsageError if flags contradict the step
void apply_step(const SlurmStep& step, const settings::Values& values, Options& options);

/// throws  UsageError if the step has not that many nodes beside the job's two
void check_spares(const SlurmStep& step, const settings::Values& values, int spares);

/// Notes if ddprun, in a batch script or shell, uses only one of several nodes that Slurm has allocated.
void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

/// The names in a Slurm host list, in order: "n[1-3,7],gpu-[001-010]-ib,x". Numbers have as many digits as
/// the first of their range; if a name has several brackets, the last one varies fastest. nullopt: not a
/// list, or more than max_names
std::optional<std::vector<std::string>> expand_host_list(const std::string& text, std::size_t max_names);

/// The numbers in a Slurm task count: "2(x3),1" is 2, 2, 2, 1. nullopt: not a list, more than max_numbers, or
/// a number outside 1 to 1,000,000
std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers);

}  // namespace ddprun::launcher
