#pragma once

#include <string>
#include <vector>

#include "launcher/output/output_plan.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

/// The round that --dry-run shows: of several nodes this one's place if the user gave it, else the first, as
/// if all nodes had as many workers. Port 0 stands for a free one.
Round shown_round(const Options& options, int workers, const std::string& run_id);

/// What --dry-run prints: for each worker what would be executed, the variables that ddprun sets, the CPUs
/// and the log files. Secrets are not shown.
///
/// program    the path of what is executed
/// inherited  ddprun's own environment, which is not repeated
std::string dry_run_text(const std::string& program, const std::vector<WorkerSpec>& specs,
                         const std::vector<WorkerOutputPlan>& outputs,
                         const std::vector<std::string>& inherited);

}  // namespace ddprun::launcher
