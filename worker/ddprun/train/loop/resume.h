#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {

// How a training begins: from which checkpoint, and in whose folder. Every rank calls these.

/// Keeps other processes from using a run folder. throws UsageError if one does, IoError
std::vector<FolderLock> lock_run_folder(const std::filesystem::path& folder);

/// The same for the trainings of this process, which share its locks, for as long as the result lives.
std::shared_ptr<void> only_training_in(const std::filesystem::path& folder);

/// If a process was killed while its --overwrite moved the run of this folder aside, before the new run had a
/// list of its own: moves the run back. If another process is doing so, or is still moving it aside, waits
/// for that, ten seconds at most. Whoever looks into the folder does this first.
///
/// path    the folder, or one of the run's files, there or in a folder there
/// throws  IoError also if the run cannot move back
void put_back_half_replaced(const std::filesystem::path& path);

/// For a message: the earlier runs that were set aside in the folder, or nothing.
std::string where_replaced(const std::filesystem::path& folder);

/// Whether a run that resumes from the checkpoint in this folder is the one that wrote it there.
bool continues_in(const std::filesystem::path& run_folder, const Resumed& from);

/// Finds the checkpoint to resume from, the same on every rank.
///
/// returns  nullopt to start from scratch
/// throws   UsageError if the checkpoint is from another task, batch size, seed or training set; IoError if
///          a file cannot be read, or there are checkpoints and none can be used
std::optional<Resumed> find_resumed(const Run& run);

/// Makes the folder this run's on rank 0, before anything is written there, and sets the run's folder and
/// identity.
///
/// resumed  null: from scratch
/// returns  what Run::folder refers to; null on the other ranks
/// throws   UsageError if it holds another run, and TrainerOptions::overwrite is false; IoError
std::unique_ptr<RunFolder> begin_folder(Run& run, const Resumed* resumed);

/// How the run to resume has ended, if it has, with its last test and summary, so that nothing is left to do;
/// then rank 0 says why it has. Every rank calls it and gets the same.
///
/// resumed  null: --resume auto has found no checkpoint
std::optional<Ending> has_ended(const Run& run, const Resumed* resumed);

}  // namespace ddprun::train
