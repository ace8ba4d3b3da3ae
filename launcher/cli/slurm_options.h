#pragma once

#include <optional>

#include <ddprun/common/settings/values.h>
#include "launcher/cli/options.h"
#include "launcher/cli/slurm.h"

namespace ddprun::launcher {

/// The Slurm job step that makes up the job; none: there is none of several tasks, or it is set aside, by
/// flags that say what nodes there are, or since this ddprun is in a job of another one. throws UsageError
std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment);

/// What the flags would say for this task of the step. What they do say about anything else is in the options
/// already. throws UsageError where that is for other nodes than these
void apply_step(const SlurmStep& step, const settings::Values& values, Options& options);

/// A note where ddprun runs on one of several nodes that Slurm has allocated.
void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options);

}  // namespace ddprun::launcher
