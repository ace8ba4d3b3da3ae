#pragma once

#include <filesystem>

#include <ddprun/group/process_group.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// Makes the run folder, its checkpoints/ and config.toml (rank 0 only). An empty path stands for
/// runs/<task>-<UTC time>. Keeps an earlier run's files until training begins: other ranks may be reading its
/// weights.
///
/// returns  the folder
/// throws   UsageError if it holds a run and overwrite is false, or if another process is using it;
///          IoError if a folder cannot be made or written to
std::filesystem::path make_run_folder(const Config& config);

/// Removes the folder if it holds only what every run writes before its first step.
void remove_unused_run_folder(const std::filesystem::path& folder);

/// Keeps other processes from using the run folder until this one ends. throws as make_run_folder()
void lock_run_folder(const std::filesystem::path& folder);

/// Writes the configuration as config.toml into the run folder. A full disk is only a warning.
void write_config(const std::filesystem::path& folder, const Config& config);

/// Writes environment.json into the run folder: versions, host, ranks, device, threads (rank 0 only). A full
/// disk is only a warning.
void write_environment(const std::filesystem::path& folder, const ddp::ProcessGroup& group);

}  // namespace ddprun::worker
