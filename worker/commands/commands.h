#pragma once

#include <vector>

#include "worker/config/task_entry.h"

namespace ddprun::worker {

/// All commands, by name.
const std::vector<CommandEntry>& all_commands();

// The commands; argv[0] is the command's name. All throw UsageError for unknown arguments.

/// worker env: prints what a training run would find here (variables, ranks, devices, backend, addresses,
/// versions) and what is wrong: rank 0 for all ranks or, if they cannot meet, each rank for itself. Returns 0
/// if all is fine, else 1.
int run_env_command(int argc, char** argv);

/// worker export CHECKPOINT OUT [--ema] [--prefix P]: writes only a model's weights, from any file that
/// train::read_weights() reads: as a bare state_dict (OUT ends in .pt), as .safetensors, or for SAM as a
/// folder; or everything, in Lightning's format (.ckpt). Returns 0; throws IoError too.
int run_export_command(int argc, char** argv);

/// worker report RUN... [--out FILE]: writes the page of a run, or one that compares runs. Returns 0; throws
/// IoError too.
int run_report_command(int argc, char** argv);

/// worker runs FOLDER...: lists the runs in a folder, or the checkpoints of a run: branch, epoch, step,
/// score, size. Returns 0; throws IoError too.
int run_runs_command(int argc, char** argv);

/// worker prune RUN [--keep-last N] [--keep-best K] [--dry-run]: removes the other checkpoints that the run
/// has listed. Returns 0; throws IoError too, UsageError also if the run is in use.
int run_prune_command(int argc, char** argv);

}  // namespace ddprun::worker
