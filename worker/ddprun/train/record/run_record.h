#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/report/metric_sink.h>
#include <ddprun/report/tensorboard_sink.h>
#include <ddprun/train/record/run_report.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {

/// The files of one run, on rank 0: metrics.csv, metrics.jsonl, TensorBoard's events, checkpoints/,
/// summary.json.
///
/// A full disk never stops a run: it causes a warning, and files keep their contents. A run fails at its end
/// if its last checkpoint did not fit.
class RunRecord {
 public:
  struct Options {
    std::vector<std::string> columns = {
        "epoch",     "step",      "lr",       "train_loss",        "train_loss_epoch",
        "train_acc", "test_loss", "test_acc", "samples_per_second"};
    /// The step from which a run resumes: keeps rows up to it. nullopt: begins with none.
    std::optional<std::int64_t> resumed_at = {};
    /// How many rows there were when its checkpoint was made: also drops later rows of the same step.
    std::optional<std::int64_t> resumed_rows = {};
    bool tensorboard = false;
    bool save_last = true;  ///< else a checkpoint that is only asked for may find no room
  };

  /// Starts the metrics files, and removes what was left half-written. folder: this run's, which outlives it.
  /// throws  IoError
  RunRecord(RunFolder& folder, Options options);
  explicit RunRecord(RunFolder& folder);

  /// Sends rows there too. make: starts the sink; called again with later rows while the disk is full
  void add_sink(std::function<std::unique_ptr<report::MetricSink>()> make);

  // All of these throw IoError, including that of an earlier checkpoint, except for a full disk.

  void add_metrics(const report::MetricRow& row);
  std::int64_t rows() const { return rows_; }  ///< so far, including a resumed run's

  /// Writes figures/NAME.png or .svg and, in TensorBoard, the picture under this tag.
  void add_figure(const std::string& name, const std::string& tag, std::int64_t step, const Figure& figure);
  /// In TensorBoard, at the step the run began with.
  void add_text(const std::string& tag, const std::string& markdown);

  /// RunFolder::begin_shards(); empty: the disk is full, so there is to be no such checkpoint.
  std::vector<std::filesystem::path> begin_shards(const std::filesystem::path& checkpoint, std::int64_t step);
  /// Whether the last checkpoint did not fit on the disk.
  bool lost_the_last() const { return disk_error_ != 0; }
  /// Whether the folder has a checkpoint of this run.
  bool has_checkpoint() const;
  /// Writes the state in the background, then deletes request.doomed; ignores empty paths. Without a request:
  /// writes to checkpoint_path().
  /// undo  called by a later member function if the first file did not fit on the disk
  void save(const TrainingState& state, CheckpointWriter::Request request, std::function<void()> undo = {});
  void save(const TrainingState& state) { save(state, {{checkpoint_path()}}); }

  /// Writes a model's bare state_dict at once. returns  false if the disk is full
  bool save_weights(const std::filesystem::path& path, const c10::IValue& model);

  /// Waits until the checkpoint is on disk or has failed.
  void settle();

  /// settle(), then frees the copy in memory.
  void flush();

  /// flush(), then writes summary.json. throws  IoError if a checkpoint is expected and none was written in
  /// the whole run, or none that was due since it was resumed
  void finish(const std::string& json, bool expects_checkpoint = true);

  RunFolder& folder() { return folder_; }
  std::filesystem::path checkpoint_folder() const { return folder_.checkpoints(); }
  std::filesystem::path checkpoint_path() const { return checkpoint_folder() / "last.pt"; }
  std::filesystem::path metrics_path() const { return folder_.path() / "metrics.csv"; }
  std::filesystem::path jsonl_path() const { return folder_.path() / "metrics.jsonl"; }
  std::filesystem::path summary_path() const { return folder_.path() / "summary.json"; }

 private:
  struct Sink {
    std::function<std::unique_ptr<report::MetricSink>()> make;
    std::unique_ptr<report::MetricSink> sink = nullptr;  // null while the disk is full
    bool disk_full = false;                              // the last row had no place
    report::MetricSink& started();
  };
  void remove_leftovers() const;
  void start_metrics();
  bool has_just_the_earlier_rows() const;
  template <typename Read>
  std::vector<report::MetricRow> earlier_rows(const std::filesystem::path& file, Read read);
  void keep_columns_of(const std::vector<report::MetricRow>& rows);

  RunFolder& folder_;
  Options options_;
  std::int64_t rows_ = 0;
  std::vector<Sink> sinks_;
  report::TensorBoardSink* tensorboard_ = nullptr;  // one of the sinks, once started
  bool is_due(const std::filesystem::path& checkpoint) const;

  bool saved_ = false;    // the last checkpoint that was due; at first any
  bool due_ = false;      // what is being written is due: last.pt, or without save_last any other
  bool pending_ = false;  // a checkpoint is being written
  std::function<void()> undo_;
  int disk_error_ = 0;  // of the last checkpoint
  CheckpointWriter writer_;
};

}  // namespace ddprun::train
