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

/// What a callback may ask for.
class Control {
 public:
  /// The training ends after this step, or at the end of the epoch that has just been trained. All ranks must
  /// ask alike.
  void request_stop(std::string reason) {
    if (!reason_) reason_ = std::move(reason);
  }
  const std::optional<std::string>& stop_reason() const { return reason_; }

 private:
  std::optional<std::string> reason_;
};

/// Something that looks on while a training goes: called on every rank, at the same points. They are called
/// in the order in which they were added; checkpoints are written after all of them.
class Callback {
 public:
  virtual ~Callback() = default;
  /// After an optimizer step.
  virtual void on_step(const TrainState&, Control&) {}
  /// After the last of some steps in a row: a validation or the end of the epoch comes, however early.
  virtual void on_pause(const TrainState&) {}
  /// After a validation, or an epoch without one. Not after the check before the training.
  virtual void on_validation(const TrainState&, Control&) {}

  /// Under this name its state is kept in checkpoints; empty: it has none.
  virtual std::string name() const { return ""; }
  virtual c10::IValue state_dict() const { return {}; }
  virtual void load_state_dict(const c10::impl::GenericDict&) {}
};

using Callbacks = std::vector<std::unique_ptr<Callback>>;

/// The ones that the options ask for: early stopping, the log of sample indices, the profile.
/// resumed  append to the files of an earlier run
Callbacks make_callbacks(const Run& run, const ParallelModel& model, bool resumed);

}  // namespace ddprun::train
