#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/run_folder.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// Makes and locks the run folder, with checkpoints/ (rank 0 only). An empty path stands for
/// runs/<task>-<UTC time>.
///
/// returns  the folder
/// throws   UsageError if another process is using it; IoError if a folder cannot be made or written to
std::filesystem::path make_run_folder(const Config& config);

/// Where this process's ddprun job has saved a checkpoint: in `out`, or if that is empty, in a folder of
/// runs/. Empty: it has not.
std::filesystem::path folder_of_this_job(const std::filesystem::path& out);

/// Removes the folder if it holds only what every run writes before its first step.
void remove_unused_run_folder(const std::filesystem::path& folder);

/// Keeps other processes from using the run folder until this one ends. throws as make_run_folder()
void lock_run_folder(const std::filesystem::path& folder);

/// The files that write_run_files() writes.
std::vector<std::string> run_file_names();

/// Writes config.toml, and environment.json: versions, host, ranks, device, threads (rank 0 only). A full
/// disk is only a warning.
void write_run_files(train::RunFolder& folder, const Config& config, const ddp::ProcessGroup& group);

}  // namespace ddprun::worker
