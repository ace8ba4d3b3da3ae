#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/image/image.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/report/tensorboard_sink.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/checkpoint_writer.h>

namespace ddprun::train {

/// The files of one run: metrics.csv, metrics.jsonl, TensorBoard's events, checkpoints/, summary.json. Rank
/// 0's business.
///
/// A disk that is full ends no run, whenever it fills: it is a warning, and the files keep what they had.
/// Only a run that could never write a checkpoint fails, at its end.
class RunRecord {
 public:
  struct Options {
    std::vector<std::string> columns = {
        "epoch",     "step",      "lr",       "train_loss",        "train_loss_epoch",
        "train_acc", "test_loss", "test_acc", "samples_per_second"};
    /// The step that a resumed run goes on from: rows of earlier steps are kept, those of later ones are its
    /// own to write again. Nothing: what an earlier run left in the folder is removed.
    std::optional<std::int64_t> resumed_at = {};
    bool tensorboard = false;
  };

  /// Starts the files of metrics, and removes what killed runs left half-written. throws IoError
  RunRecord(std::filesystem::path folder, Options options);
  explicit RunRecord(std::filesystem::path folder);

  /// Rows go there too. make: starts the sink; called again with a later row while the disk is full
  void add_sink(std::function<std::unique_ptr<report::MetricSink>()> make);

  /// throws  IoError, also of a checkpoint that could not be written; but for a full disk
  void add_metrics(const report::MetricRow& row);

  /// A picture as figures/NAME.png, and in TensorBoard under its name. throws IoError, but for a full disk
  void add_figure(const std::string& name, std::int64_t step, const image::Image& picture);
  /// A text for TensorBoard alone. throws IoError, but for a full disk
  void add_text(const std::string& name, const std::string& markdown);

  /// Writes the state in the background, then deletes what is to make way for it; empty paths are passed
  /// over. Without a request: to checkpoint_path(). throws  IoError of an earlier one, but for a full disk
  ///
  /// undo  a later call here calls it if the disk had no place for the first of the files
  void save(const TrainingState& state, CheckpointWriter::Request request, std::function<void()> undo = {});
  void save(const TrainingState& state) { save(state, {{checkpoint_path()}}); }

  /// Writes a model's bare state_dict, now. returns  false if the disk is full. throws  IoError
  bool save_weights(const std::filesystem::path& path, const c10::IValue& model);

  /// Waits until the checkpoint is on disk, or the disk is known to be full. throws  as save()
  void settle();

  /// Whether a checkpoint is still being written; save() would wait for it.
  bool saving() const { return writer_.busy(); }

  /// settle(), and the copy in memory is let go of. throws  as save()
  void flush();

  /// flush(), then the summary. json: its text
  /// throws IoError if no checkpoint could be written in the whole run
  void finish(const std::string& json);

  std::filesystem::path checkpoint_folder() const { return folder_ / "checkpoints"; }
  std::filesystem::path checkpoint_path() const { return checkpoint_folder() / "last.pt"; }
  std::filesystem::path metrics_path() const { return folder_ / "metrics.csv"; }
  std::filesystem::path jsonl_path() const { return folder_ / "metrics.jsonl"; }
  std::filesystem::path summary_path() const { return folder_ / "summary.json"; }

 private:
  struct Sink {
    std::function<std::unique_ptr<report::MetricSink>()> make;
    std::unique_ptr<report::MetricSink> sink = nullptr;  // none as long as the disk is full
    report::MetricSink& started();
  };
  void remove_earlier_run() const;
  void remove_leftovers() const;
  std::vector<report::MetricRow> earlier_rows() const;
  void keep_columns_of(const std::vector<report::MetricRow>& rows);

  std::filesystem::path folder_;
  Options options_;
  std::vector<Sink> sinks_;
  report::TensorBoardSink* tensorboard_ = nullptr;  // one of the sinks, once it is started
  bool saved_ = false;
  bool pending_ = false;        // a checkpoint whose end is not known yet
  std::function<void()> undo_;  // of that one
  int disk_error_ = 0;          // of the last checkpoint that could not be written
  CheckpointWriter writer_;
};

}  // namespace ddprun::train
