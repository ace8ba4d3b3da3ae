#pragma once

#include <ddprun/group/process_group.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// Only algorithms that give the same result every time; what has none throws when it is used. As
/// torch.use_deterministic_algorithms(True), with cuBLAS's workspace set and cuDNN's search for the fastest
/// algorithm off. Before the first use of a GPU.
void make_deterministic();

/// throws  UsageError for what does not go with 16-mixed, which scales the loss, if that is what the device
///         will compute in
void check_precision(const Config& config, at::Device device);

/// On a CPU 16-mixed becomes bf16-mixed, as in Lightning: float16 is slow there where it works at all. Rank 0
/// says so.
void settle_precision(Config& config, const ddp::ProcessGroup& group);

}  // namespace ddprun::worker
