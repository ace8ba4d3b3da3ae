#pragma once

#include <optional>

namespace ddprun::worker {

/// Runs the command that the first argument names, if it is not a task: `worker env`, ...
///
/// returns  its exit code; nullopt if the first argument is not a command
/// throws   as the command does
std::optional<int> run_command(int argc, char** argv);

// The commands; argv[0] is the command's name. All throw UsageError for what they do not know.

/// worker env: prints what a training would find here (variables, ranks, devices, backend, addresses,
/// versions) and what is wrong. Several ranks meet, and rank 0 prints for all; if they cannot meet, each
/// prints its own. Returns 0 if all is fine, else 1.
int run_env_command(int argc, char** argv);

/// worker export CHECKPOINT OUT [--ema]: writes a model's weights alone from any file that
/// train::read_weights() reads: as a bare state_dict (OUT ends in .pt), as .safetensors, or for SAM as a
/// folder. Returns 0; throws IoError too.
int run_export_command(int argc, char** argv);

}  // namespace ddprun::worker
