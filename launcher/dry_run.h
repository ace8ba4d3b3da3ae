#pragma once

#include <string>
#include <vector>

#include "launcher/launch_plan.h"
#include "launcher/output_plan.h"

namespace ddprun {

/// What --dry-run prints: for each worker what would be executed, the variables that ddprun sets, the CPUs
/// and the log files. Secrets are not shown.
///
/// program    the path of what is executed
/// inherited  ddprun's own environment, which is not repeated
std::string dry_run_text(const std::string& program, const std::vector<WorkerSpec>& specs,
                         const std::vector<WorkerLogPlan>& outputs,
                         const std::vector<std::string>& inherited);

}  // namespace ddprun
