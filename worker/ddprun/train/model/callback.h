#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// The evaluation that is in progress.
enum class Evaluating { kNothing, kWithinEpoch, kEpoch };

/// The position of a training: the same on every rank, except for the last two.
struct TrainState {
  std::int64_t epoch = 0;  ///< the current one, from 0
  std::int64_t step = 0;   ///< optimizer steps done
  Evaluating evaluating = Evaluating::kNothing;
  report::MetricRow metrics = {};              ///< known so far: from validation, from the epoch
  std::span<const std::int64_t> indices = {};  ///< in on_step(): the samples of this rank's step
  double data_wait = 0;                        ///< seconds this rank has waited for batches so far
};

/// What a callback may request.
class Control {
 public:
  /// Ends the training after this step or epoch. All ranks must request the same.
  void request_stop(std::string reason) {
    if (!reason_) reason_ = std::move(reason);
  }
  const std::optional<std::string>& stop_reason() const { return reason_; }

 private:
  std::optional<std::string> reason_;
};

/// Observes a training run (TrainerOptions::callbacks): called on every rank at the same points, in the order
/// of addition, before checkpoints are written. After a lost rank was replaced, calls for the step or
/// evaluation that it interrupted may come again. A callback must not communicate with other ranks.
class Callback {
 public:
  virtual ~Callback() = default;
  /// After an optimizer step. With --join also on a rank that has no batch left, with no indices.
  virtual void on_step(const TrainState&, Control&) {}
  /// Before a validation or the end of an epoch interrupts the steps.
  virtual void on_pause(const TrainState&) {}
  /// After a validation, or after an epoch without one; not after the sanity check.
  virtual void on_validation(const TrainState&, Control&) {}
  /// After a whole epoch, its validation included: TrainState::metrics has its row of metrics.csv.
  virtual void on_epoch(const TrainState&, Control&) {}

  /// The key of its state in checkpoints; empty: no state.
  virtual std::string name() const { return ""; }
  virtual c10::IValue state_dict() const { return {}; }
  virtual void load_state_dict(const c10::impl::GenericDict&) {}
};

}  // namespace ddprun::train
