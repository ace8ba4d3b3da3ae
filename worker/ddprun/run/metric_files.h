#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/report/metric_sink.h>
#include <ddprun/run/context.h>

namespace ddprun {

/// A training's figures, as a CSV file and as TensorBoard's events, that a resumed training continues where
/// its Checkpoint was written, and that lose no row if a rank is lost:
///
///   MetricFiles metrics(ctx, {.csv = "metrics.csv", .tensorboard = "runs/mine"});   // before the Checkpoint
///   checkpoint.keep("metrics", metrics);
///   ...
///   optimizer.step();
///   metrics.add({{"step", 12}, {"train_loss", 0.3}});
///
/// Rank 0 writes. A file with rows that the checkpoint does not know of is moved to NAME.1 first.
class MetricFiles {
 public:
  struct Options {
    std::filesystem::path csv = {};          ///< a file; empty: none
    std::filesystem::path tensorboard = {};  ///< a folder; empty: none
  };

  MetricFiles(const Context& context, Options options);
  MetricFiles(const MetricFiles&) = delete;
  MetricFiles& operator=(const MetricFiles&) = delete;

  /// Every rank calls it, with the same row: the others have the newest ones if rank 0 is lost. As with
  /// everything that a Checkpoint keeps, right after the optimizer's step, or right before save().
  /// TensorBoard needs a "step". If a row cannot be written, as on a full disk, warns once and tries again
  /// with the next. throws  IoError if a file cannot be begun
  void add(const report::MetricRow& row);

  /// How many rows the files have, and the newest of them.
  c10::impl::GenericDict state_dict() const;
  /// Goes back to those rows. Every rank calls it.
  void load_state_dict(const c10::impl::GenericDict& state);

 private:
  /// One of the files.
  struct File {
    std::function<void(const report::MetricRow&)> write;
    std::deque<report::MetricRow> waiting = {};  // not written yet
    bool failed = false;                         // warned of

    void add(const report::MetricRow& row);
  };

  void begin();
  void begin_csv();
  void begin_tensorboard();
  bool add_columns(const report::MetricRow& row);
  void write_csv(const report::MetricRow& row);
  std::vector<report::MetricRow> earlier_rows() const;

  const Context& context_;
  const Options options_;
  std::int64_t rows_ = 0;
  std::deque<report::MetricRow> newest_;
  bool begun_ = false;
  std::vector<File> files_;
  std::vector<std::string> columns_;         // of the CSV file
  bool begins_anew_ = false;                 // it lacks some of them
  std::unique_ptr<report::MetricSink> csv_;  // null: the file has no rows
};

}  // namespace ddprun
