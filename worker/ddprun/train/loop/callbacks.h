#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddprun/train/model/callback.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>

namespace ddprun::train {

/// What --profile writes in the run folder, of all ranks: of each a table (profile_table_of()) and a trace.
std::vector<std::string> profile_files(int ranks);

using Callbacks = std::vector<std::shared_ptr<Callback>>;

/// Those that the options request: early stopping, the log of sample indices, the profile, the program's own.
/// resumed  append to the files of an earlier run
Callbacks make_callbacks(const Run& run, const ParallelModel& model, bool resumed);

}  // namespace ddprun::train
