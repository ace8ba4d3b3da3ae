#pragma once

#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/model/run.h>

namespace ddprun::train {

/// Whether the run to resume has ended, with its last test and summary, so that nothing is left to do; then
/// rank 0 says why it has. Every rank calls it and gets the same.
bool has_ended(const Run& run, const Resumed& resumed);

}  // namespace ddprun::train
