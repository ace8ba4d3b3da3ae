#pragma once

namespace ddprun::worker {

/// worker export CHECKPOINT OUT [--ema]: writes a model's weights alone, as a bare state_dict (OUT ends in
/// .pt) or as .safetensors, from any file that train::read_weights() reads.
///
/// returns  0
/// throws   UsageError for a flag that it does not know or another ending of OUT; IoError
int run_export_command(int argc, char** argv);

}  // namespace ddprun::worker
