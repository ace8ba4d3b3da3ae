#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::test {

/// The list of a folder's files, as of a run that has begun there.
struct BegunFolder {
  explicit BegunFolder(const std::filesystem::path& path, bool resumes = false) : folder(path) {
    std::filesystem::create_directories(folder.checkpoints());
    const std::vector<std::string> names = {"metrics.csv", "metrics.jsonl", "summary.json"};
    resumes ? folder.resume(folder.identity(), /*is_newest=*/true, names) : folder.begin(names);
  }
  train::RunFolder folder;
};

/// A run's record in a folder, as train::fit() begins or continues one.
class TestRun : private BegunFolder, public train::RunRecord {
 public:
  using RunRecord::folder;
  explicit TestRun(const std::filesystem::path& path, Options options = {})
      : BegunFolder(path, options.resumed_at.has_value()),
        RunRecord(BegunFolder::folder, std::move(options)) {}
};

}  // namespace ddprun::test
