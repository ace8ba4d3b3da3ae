#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>

#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>

namespace ddprun::train {

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

/// Observes a training run: called on every rank at the same points, in the order of addition, before
/// checkpoints are written.
class Callback {
 public:
  virtual ~Callback() = default;
  /// After an optimizer step.
  virtual void on_step(const TrainState&, Control&) {}
  /// Before a validation or the end of an epoch interrupts the steps.
  virtual void on_pause(const TrainState&) {}
  /// After a validation, or after an epoch without one; not after the sanity check.
  virtual void on_validation(const TrainState&, Control&) {}

  /// The key of its state in checkpoints; empty: no state.
  virtual std::string name() const { return ""; }
  virtual c10::IValue state_dict() const { return {}; }
  virtual void load_state_dict(const c10::impl::GenericDict&) {}
};

using Callbacks = std::vector<std::unique_ptr<Callback>>;

/// Those that the options request: early stopping, the log of sample indices, the profile.
/// resumed  append to the files of an earlier run
Callbacks make_callbacks(const Run& run, const ParallelModel& model, bool resumed);

}  // namespace ddprun::train
