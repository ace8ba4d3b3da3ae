#pragma once

#include <string>

#include "worker/config/config.h"
#include "worker/config/task_entry.h"

namespace ddprun::worker {

/// The settings in the checkpoint that --resume names, as to_json(); empty if there is none.
/// throws  IoError for a file that is no checkpoint
std::string config_of_checkpoint(const Config& config);

/// The settings that apply to a run that resumes.
struct ResumedConfig {
  Config config;
  Config before;        ///< the one that made the checkpoint
  std::string changes;  ///< "--lr 0.1 replaces the checkpoint's 0.01", ...; empty: none
};

/// The one rule: each setting is as stated on the command line or in --config, else as in the checkpoint. How
/// long to train (--epochs, --max-steps, --max-time) and on what (--device, --backend, --timeout) is this
/// run's own.
///
/// checkpoint_json  config_of_checkpoint()
/// throws  UsageError for another optimizer, or settings that exclude each other
ResumedConfig resumed_config(const Config& config, const std::string& checkpoint_json, const TaskEntry& task);

}  // namespace ddprun::worker
