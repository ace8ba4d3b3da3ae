#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {

/// What a checkpoint's name may tell and what it may be judged by; a report::MetricRow is one.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// A checkpoint's name without extension, from Lightning's pattern: {name} or {name:spec} becomes name=value,
/// formatted by Python's rules. epoch and step are integers, metrics float32; one that is missing is 0.
///
///   ddp-cifar10-{epoch:02d}-{val_acc:.2f}  ->  ddp-cifar10-epoch=07-val_acc=0.86
///
/// pattern      empty: {epoch}-{step}
/// auto_insert  false leaves "name=" out
/// throws       UsageError if braces do not match or a spec is not one of
/// [sign][0][width][.digits][d|e|f|g|%]
std::string checkpoint_name(const std::string& pattern, const MetricValues& metrics, std::int64_t epoch,
                            std::int64_t step, bool auto_insert = true);

/// Lightning's ModelCheckpoint arguments, with its defaults.
struct CheckpointPolicyOptions {
  std::filesystem::path folder;  ///< where checkpoints lie
  std::string filename;          ///< see checkpoint_name(); empty: {epoch}-{step}
  std::string extension = ".ckpt";
  std::string monitor;  ///< the metric to judge by; empty: the newest is the best
  MonitorMode mode = MonitorMode::kMin;
  std::int64_t save_top_k = 1;  ///< how many to keep; -1 all, 0 none
  bool auto_insert_metric_name = true;
  std::filesystem::path resumed_from;  ///< this file is never removed
};

/// What to do now, in this order; a path that is empty is nothing to do. The one is removed only once the
/// other is whole on the disk.
struct CheckpointPlan {
  std::filesystem::path write, remove;
};

/// Which checkpoints to write, under what names, and which to remove: Lightning 2.6's ModelCheckpoint as a
/// value. It touches no file. On many ranks rank 0 decides; the others need not know.
class CheckpointPolicy {
 public:
  using FileExists = std::function<bool(const std::filesystem::path&)>;
  enum class Occasion {
    kRequest,    ///< a signal, the end of the time: keeps no checkpoint
    kStep,       ///< after an optimizer step without validation
    kValidation  ///< after validation or the end of an epoch
  };

  /// exists  asked before a name is used: a file of that name gets a -v1, -v2, ... beside it
  /// throws  UsageError if save_top_k is below -1, or above 1 without a metric to judge by
  CheckpointPolicy(CheckpointPolicyOptions options, FileExists exists);

  /// Decides, and takes it as done. Nothing at a step that has been saved already, at step 0, or at kStep as
  /// long as the metric to judge by is not there. throws  UsageError at kValidation if it is not
  CheckpointPlan plan(const MetricValues& metrics, std::int64_t epoch, std::int64_t step, Occasion occasion);

  /// Empty as long as there is none.
  const std::filesystem::path& best_path() const { return best_path_; }
  std::optional<double> best_score() const { return best_score_; }
  /// The kept ones, with their scores (infinite for NaN), in the order of saving.
  const std::vector<std::pair<std::filesystem::path, float>>& best_k() const { return best_k_; }
  const CheckpointPolicyOptions& options() const { return options_; }

  /// Lightning's keys: monitor, best_model_score, best_model_path, current_score, dirpath, best_k_models,
  /// kth_best_model_path, kth_value, and an empty last_model_path.
  c10::impl::GenericDict state_dict() const;
  /// Of a run in another folder only the best path is taken.
  /// throws  std::invalid_argument naming a key that is missing or of another type
  void load_state_dict(const c10::impl::GenericDict& state);

  /// Forgets the kept ones whose files are gone: best_path() is then the best of those that are there.
  /// returns  what is forgotten
  std::vector<std::filesystem::path> forget_missing();

 private:
  using Path = std::filesystem::path;
  bool is_among_top_k(float score) const;
  std::pair<Path, float> worst_kept() const;
  std::pair<Path, float> best_kept() const;
  void plan_top_k(const MetricValues& metrics, std::int64_t epoch, std::int64_t step, CheckpointPlan& plan);
  void plan_by_score(float score, const std::string& name, CheckpointPlan& plan);
  void plan_newest(const std::string& name, CheckpointPlan& plan);
  Path free_path(const std::string& name, const Path& reusable) const;
  bool may_remove(const Path& previous, const Path& current) const;

  CheckpointPolicyOptions options_;
  FileExists exists_;
  std::vector<std::pair<Path, float>> best_k_;
  Path best_path_, kth_best_path_;
  std::optional<float> best_score_, current_score_;
  float kth_value_;
  std::int64_t last_step_saved_ = 0;
};

}  // namespace ddprun::train
