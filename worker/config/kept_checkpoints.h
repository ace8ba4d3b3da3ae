#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/state/checkpoint.h>

namespace ddprun::worker {

/// Whether it is a run's folder: it has run.json, metrics.csv or checkpoints/.
bool is_run_folder(const std::filesystem::path& folder);

/// The run folders in a folder, by name. throws  IoError if it cannot be listed or has none
std::vector<std::filesystem::path> runs_in(const std::filesystem::path& folder);

/// The best checkpoints that are there, and the metric that chose them; as the newest state that can be read
/// lists them.
struct BestCheckpoints {
  std::string monitor;
  std::vector<std::pair<std::string, double>> scores;  ///< by file name, the best one first
  std::string missing;  ///< what the run took for its best, if it is none of them
};
BestCheckpoints best_checkpoints(const std::vector<train::StateFile>& states);

/// What the checkpoint of a run tells of it, without its tensors. nullopt for a file of weights alone, and
/// for another program's checkpoint that gives no more than its weights.
///
/// throws  IoError for a checkpoint of ddprun's that cannot be used, such as one of a newer version
std::optional<train::TrainingState> run_of_weights(const std::filesystem::path& file);

/// For a command that would replace it.
///
/// throws  UsageError, which begins with `what`, for a file that a run has listed
void check_not_of_a_run(const std::filesystem::path& file, const std::string& what);

enum class Kept { kBest, kNewest };

/// The file that a path given for a checkpoint stands for. A run's folder stands for its best checkpoint, or
/// the newest where none is kept as best; rank 0 logs which one that is, and what cannot be read. Any other
/// path stands for itself.
///
/// flag    before the logged line: "--eval: "
/// throws  IoError for a folder that is not a run's, or of whose newest branch no checkpoint can be read
std::filesystem::path checkpoint_of(const std::filesystem::path& path, const std::string& flag = "",
                                    Kept kept = Kept::kBest);

}  // namespace ddprun::worker
