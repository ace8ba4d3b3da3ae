#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/callback.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/optim/options.h>

namespace ddprun::train {

/// Those that the options ask for: early stopping, the log of samples' indices, the profile.
///
/// resumed  files go on where an earlier run left them
std::vector<std::unique_ptr<Callback>> make_callbacks(const TrainerOptions& options,
                                                      const std::string& monitor,
                                                      const ddp::ProcessGroup& group,
                                                      const ParallelModel& model, bool resumed);

}  // namespace ddprun::train
