#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <ATen/core/Dict.h>

#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// Where a training stands: the same on every rank but for the last two.
struct TrainState {
  std::int64_t epoch = 0;                      ///< the one under way, from 0
  std::int64_t step = 0;                       ///< optimizer steps done
  report::MetricRow metrics = {};              ///< what is known at this point: of validation, of the epoch
  std::span<const std::int64_t> indices = {};  ///< in on_step(): the samples of this rank's step
  double data_wait = 0;                        ///< seconds that this rank has waited for its batches so far

  std::optional<double> metric(const std::string& name) const {
    for (const auto& [key, value] : metrics)
      if (key == name) return value;
    return std::nullopt;
  }
};

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

}  // namespace ddprun::train
