#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/report/csv_sink.h"
#include "worker/train/checkpoint.h"
#include "worker/train/checkpoint_writer.h"

namespace ddprun::train {

/// The files of one run: metrics, checkpoints/, summary.json. Rank 0's business.
///
/// A disk that is full ends no run, whenever it fills: it is a warning, and the files keep what they had.
/// Only a run that could never write a checkpoint fails, at its end.
class RunRecord {
 public:
  enum class Start {
    kFresh,   ///< what an earlier run left in the folder is removed
    kResumed  ///< it is gone on with
  };

  /// Makes checkpoints/, removes what killed runs left half-written and starts metrics.csv. throws IoError
  explicit RunRecord(std::filesystem::path folder, Start start = Start::kFresh);

  void add_metrics(const report::MetricRow& row);

  /// Writes the state in the background to these files of checkpoints/, then deletes others of them: names as
  /// the policy of checkpoints gives them. throws  IoError of an earlier one, but for a full disk
  void save(const TrainingState& state, const std::vector<std::string>& names = {"last.pt"},
            const std::vector<std::string>& doomed = {});

  /// Whether a checkpoint is still being written; save() would wait for it.
  bool saving() const { return writer_.busy(); }

  /// Waits for the checkpoints.
  void flush();

  /// flush(), then the summary. json: its text
  /// throws IoError if no checkpoint could be written in the whole run
  void finish(const std::string& json);

  std::filesystem::path checkpoint_folder() const { return folder_ / "checkpoints"; }
  std::filesystem::path checkpoint_path() const { return checkpoint_folder() / "last.pt"; }
  std::filesystem::path metrics_path() const { return folder_ / "metrics.csv"; }
  std::filesystem::path summary_path() const { return folder_ / "summary.json"; }

 private:
  report::CsvSink& metrics();

  std::filesystem::path folder_;
  std::optional<report::CsvSink> metrics_;  // none as long as the disk was full whenever it was to be started
  bool saved_ = false;
  int disk_error_ = 0;  // of the last checkpoint that could not be written
  CheckpointWriter writer_;
};

}  // namespace ddprun::train
