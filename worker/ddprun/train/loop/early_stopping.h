#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>

#include <ddprun/train/loop/callbacks.h>
#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {

/// Lightning's EarlyStopping arguments, with its defaults.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";  ///< the metric's name
  double min_delta = 0;              ///< smaller improvements do not count
  std::int64_t patience = 3;         ///< checks without a better value
  MonitorMode mode = MonitorMode::kMin;
  bool check_finite = true;                         ///< stop at NaN or infinity
  std::optional<double> stopping_threshold = {};    ///< stop once better than this
  std::optional<double> divergence_threshold = {};  ///< stop once worse than this
};

/// Ends the training when a metric stops improving: Lightning 2.6's EarlyStopping. Values are float32, as
/// Lightning logs them. With exact metrics all ranks decide alike.
class EarlyStopping : public Callback {
 public:
  struct Decision {
    bool stop = false;
    std::string reason;  ///< one line for the log; empty without a change
  };

  /// throws  std::invalid_argument if patience is negative
  explicit EarlyStopping(EarlyStoppingOptions options);

  /// epoch  saved as stopped_epoch if training stops
  Decision check(double value, std::int64_t epoch);

  /// Checks the monitored metric, if there is a value.
  void on_validation(const TrainState& state, Control& control) override;
  double best_score() const { return best_score_; }  ///< infinite if there is none
  bool stopped() const { return reason_ != Reason::kNotStopped; }

  /// Lightning's keys: wait_count, stopped_epoch, best_score, patience, stopping_reason,
  /// stopping_reason_message.
  std::string name() const override { return "EarlyStopping"; }
  c10::IValue state_dict() const override;
  /// Keeps its own patience. throws  std::invalid_argument naming a key that is missing or has the wrong type
  void load_state_dict(const c10::impl::GenericDict& state) override;

 private:
  enum class Reason {  // Lightning's EarlyStoppingReason
    kNotStopped = 0,
    kStoppingThreshold = 1,
    kDivergenceThreshold = 2,
    kPatienceExhausted = 3,
    kNonFiniteMetric = 4
  };
  std::string improvement(float value) const;

  EarlyStoppingOptions options_;
  float min_delta_;  // signed: negative where smaller is better
  float best_score_;
  std::int64_t wait_count_ = 0, stopped_epoch_ = 0;
  Reason reason_ = Reason::kNotStopped;
  std::string message_;
};

}  // namespace ddprun::train
