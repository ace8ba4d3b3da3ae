#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "worker/report/csv_sink.h"
#include "worker/train/checkpoint.h"

namespace ddprun::train {

/// The files of one run: metrics.csv, checkpoints/last.pt, summary.json. Rank 0's business.
///
/// A disk that is full ends no run, whenever it fills: it is a warning, and the files keep what they had.
/// Only a run that could never write a checkpoint fails, at its end.
class RunRecord {
 public:
  /// Removes what an earlier run left in the folder and starts metrics.csv. throws IoError
  explicit RunRecord(std::filesystem::path folder);

  void add_metrics(const report::MetricRow& row);
  void save(const TrainingState& state);
  /// json  the summary's text
  /// throws IoError if no checkpoint could be written in the whole run
  void finish(const std::string& json);

  std::filesystem::path checkpoint_path() const { return folder_ / "checkpoints" / "last.pt"; }
  std::filesystem::path metrics_path() const { return folder_ / "metrics.csv"; }
  std::filesystem::path summary_path() const { return folder_ / "summary.json"; }

 private:
  report::CsvSink& metrics();

  std::filesystem::path folder_;
  std::optional<report::CsvSink> metrics_;  // none as long as the disk was full whenever it was to be started
  bool saved_ = false;
  int disk_error_ = 0;  // of the last checkpoint that could not be written
};

}  // namespace ddprun::train
