#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/output/output_stream.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

/// The round that --dry-run shows: this node's by its node rank, else the first node's, assuming that all
/// nodes have this many workers. Port 0 means a free one.
Round shown_round(const Options& options, int workers, const std::string& run_id);

/// What --dry-run prints for each worker: the command, the variables that ddprun sets, CPUs and log files,
/// without secrets.
///
/// program    its path
/// inherited  ddprun's own environment, which is not repeated
std::string dry_run_text(const std::string& program, const std::vector<WorkerSpec>& specs,
                         const std::vector<WorkerOutputPlan>& outputs,
                         const std::vector<std::string>& inherited);

/// What --show-ranks prints for a worker: rank, host, process, where the ranks meet, and GPUs if its
/// environment limits them.
std::string rank_line(const WorkerSpec& spec, const std::string& host, pid_t pid);

}  // namespace ddprun::launcher
