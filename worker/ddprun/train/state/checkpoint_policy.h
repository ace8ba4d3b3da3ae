#pragma once

#include <ATen/core/ivalue.h>

#include <functional>

#include <ddprun/common/errors.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {

/// What is wrong with a pattern for checkpoint_name().
struct CheckpointNameError : UsageError {
  CheckpointNameError(const std::string& pattern, std::string expected_there)
      : UsageError("checkpoint name '" + pattern + "': expected " + expected_there),
        expected(std::move(expected_there)) {}

  std::string expected;  ///< "'}' after '{'"
};

/// A checkpoint's name without extension, from Lightning's pattern: {name} or {name:spec} becomes name=value,
/// formatted by Python's rules. epoch and step are integers, metrics float32; a missing metric is 0.
///
///   ddp-cifar10-{epoch:02d}-{val_acc:.2f}  ->  ddp-cifar10-epoch=07-val_acc=0.86
///
/// pattern  empty: {epoch}-{step}
/// throws   CheckpointNameError for a dot at the front, unmatched braces or a spec other than
/// [sign][0][width][.digits][d|e|f|g|%]
std::string checkpoint_name(const std::string& pattern, const report::MetricRow& metrics, std::int64_t epoch,
                            std::int64_t step);

/// The names between '{' and '}' in such a pattern, except epoch and step.
std::vector<std::string> metrics_in(const std::string& pattern);

/// Lightning's ModelCheckpoint arguments, with its defaults.
struct CheckpointPolicyOptions {
  std::filesystem::path folder;  ///< of the checkpoints
  std::string filename;          ///< see checkpoint_name(); empty: {epoch}-{step}
  std::string extension = ".ckpt";
  std::string monitor;  ///< the metric to compare
  MonitorMode mode = MonitorMode::kMin;
  std::int64_t save_top_k = 1;         ///< how many to keep; -1 all, 0 none
  std::filesystem::path resumed_from;  ///< never removed
};

/// What to write, and what to remove once that is complete on disk; empty paths mean nothing.
struct CheckpointPlan {
  std::filesystem::path write, remove;
};

/// Decides which checkpoints to write, under what names, and which to remove: Lightning 2.6's ModelCheckpoint
/// without touching files. Only rank 0 needs one.
class CheckpointPolicy {
 public:
  using FileExists = std::function<bool(const std::filesystem::path&)>;
  enum class Occasion {
    kRequest,    ///< a signal: keeps no checkpoint
    kEnd,        ///< within an epoch, by a limit: the same
    kStep,       ///< after an optimizer step without validation
    kValidation  ///< after validation or the end of an epoch
  };

  /// exists  if a name is taken, the checkpoint is called NAME-v1, NAME-v2, ...
  /// throws  UsageError if save_top_k is below -1
  CheckpointPolicy(CheckpointPolicyOptions options, FileExists exists);

  /// Decides, and assumes that the plan is carried out. Empty for a step that is already saved, for step 0,
  /// and at kStep without the monitored metric. throws  UsageError at kValidation without it
  CheckpointPlan plan(const report::MetricRow& metrics, std::int64_t epoch, std::int64_t step,
                      Occasion occasion);

  /// Empty if there is none yet.
  const std::filesystem::path& best_path() const { return best_path_; }

  /// Lightning's keys: monitor, best_model_score, best_model_path, current_score, dirpath, best_k_models,
  /// kth_best_model_path, kth_value, and an empty last_model_path.
  c10::impl::GenericDict state_dict() const;
  /// Takes only the best path from a run in another folder.
  ///
  /// same_run  the folder is the same one, however it is called now
  /// throws  std::invalid_argument naming a key that is missing or has the wrong type
  void load_state_dict(const c10::impl::GenericDict& state, bool same_run = false);

  /// Forgets kept checkpoints of which this is not true, and returns them; best_path() is the best of the
  /// rest.
  std::vector<std::filesystem::path> forget_unless(const FileExists& is_kept);

 private:
  using Path = std::filesystem::path;
  std::size_t most_kept() const { return static_cast<std::size_t>(options_.save_top_k); }  // -1: any number
  std::pair<Path, float> best_kept(bool or_worst = false) const;
  std::pair<Path, float> worst_kept() const { return best_kept(/*or_worst=*/true); }
  CheckpointPlan plan_by_score(float score, const std::string& name);
  Path free_path(const std::string& name, const Path& reusable) const;
  bool may_remove(const Path& previous, const Path& current) const;

  CheckpointPolicyOptions options_;
  FileExists exists_;
  std::vector<std::pair<Path, float>> best_k_;
  Path best_path_;
  std::optional<float> best_score_, current_score_;
  std::int64_t last_step_saved_ = 0;
};

}  // namespace ddprun::train
