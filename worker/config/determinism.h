#pragma once

#include <ddprun/group/process_group.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// Uses only algorithms that give the same result every time; an operator without one throws when it is used.
/// Does what torch.use_deterministic_algorithms(True) does, sets cuBLAS's workspace and turns off cuDNN's
/// search for the fastest algorithm. Call it before the first use of a GPU.
void make_deterministic();

/// throws  UsageError for settings that contradict 16-mixed, which scales the loss, if the device computes
///         in it
void check_precision(const Config& config, at::Device device);

/// On a CPU changes 16-mixed to bf16-mixed, as Lightning does: float16 is slow there if it works at all. Rank
/// 0 logs it.
void settle_precision(Config& config, const ddp::ProcessGroup& group);

}  // namespace ddprun::worker
