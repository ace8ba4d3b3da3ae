#include <ddprun/train/loop/early_stopping.h>

#include <ATen/core/Dict.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      min_delta_(
          static_cast<float>(options_.mode == MonitorMode::kMin ? -options_.min_delta : options_.min_delta)),
      best_score_(worst_value<float>(options_.mode)) {
  if (options_.patience < 0)
    throw std::invalid_argument("early stopping: expected a patience of 0 or more, got " +
                                std::to_string(options_.patience));
}

void EarlyStopping::on_validation(const TrainState& state, Control& control) {
  const auto value = find_metric(state.metrics, options_.monitor);
  if (!value) return;
  if (const auto decision = check(*value, state.epoch); decision.stop) control.request_stop(decision.reason);
}

EarlyStopping::Decision EarlyStopping::check(double metric, std::int64_t epoch) {
  const auto value = static_cast<float>(metric);
  const auto now = options_.monitor + " = " + c10::str(value);
  const auto as_float = [](double threshold) { return static_cast<float>(threshold); };
  const auto stop = [&](Reason reason, const std::string& text) {
    reason_ = reason;
    stopped_epoch_ = epoch;
    message_ = text;
    return Decision{true, text};
  };
  if (options_.check_finite && !std::isfinite(value))
    return stop(Reason::kNonFiniteMetric,
                now + " is not finite; the best so far was " + c10::str(best_score_));
  if (const auto threshold = options_.stopping_threshold;
      threshold && is_better(options_.mode, value, as_float(*threshold)))
    return stop(Reason::kStoppingThreshold,
                now + " has passed the stopping threshold " + c10::str(*threshold));
  if (const auto threshold = options_.divergence_threshold;
      threshold && is_better(options_.mode, -value, -as_float(*threshold)))
    return stop(Reason::kDivergenceThreshold,
                now + " has passed the divergence threshold " + c10::str(*threshold));
  if (is_better(options_.mode, value - min_delta_, best_score_)) {
    auto text = improvement(value);
    best_score_ = value;
    wait_count_ = 0;
    return {false, std::move(text)};
  }
  if (++wait_count_ >= options_.patience)
    return stop(Reason::kPatienceExhausted, options_.monitor + " has not been better than " +
                                                c10::str(best_score_) + " in the last " +
                                                std::to_string(wait_count_) + " checks");
  return {};
}

std::string EarlyStopping::improvement(float value) const {
  auto text = options_.monitor + " = " + c10::str(value) + " is the best so far";
  if (std::isfinite(best_score_)) text += ", better by " + c10::str(std::abs(best_score_ - value));
  return text;
}

c10::IValue EarlyStopping::state_dict() const {
  return make_state({{"wait_count", wait_count_},
                     {"stopped_epoch", stopped_epoch_},
                     {"best_score", torch::full({}, best_score_, torch::kFloat32)},
                     {"patience", options_.patience},
                     {"stopping_reason", static_cast<std::int64_t>(reason_)},
                     {"stopping_reason_message", message_.empty() ? c10::IValue() : c10::IValue(message_)}});
}

void EarlyStopping::load_state_dict(const c10::impl::GenericDict& state) {
  const DictReader reader(state, "early stopping");
  auto loaded = *this;  // all or nothing
  loaded.wait_count_ = reader.integer("wait_count");
  if (loaded.wait_count_ < 0 || loaded.wait_count_ == std::numeric_limits<std::int64_t>::max())
    reader.fail("'wait_count': expected a number of checks, got " + std::to_string(loaded.wait_count_));
  loaded.stopped_epoch_ = reader.integer("stopped_epoch");
  loaded.best_score_ = static_cast<float>(reader.number("best_score"));
  // Lightning before 2.6 has no reason.
  const auto reason = reader.has("stopping_reason") ? reader.integer("stopping_reason") : 0;
  if (reason < 0 || reason > static_cast<std::int64_t>(Reason::kNonFiniteMetric))
    reader.fail("'stopping_reason': expected 0 to 4, got " + std::to_string(reason));
  loaded.reason_ = static_cast<Reason>(reason);
  loaded.message_ = reader.has("stopping_reason_message") ? reader.text("stopping_reason_message") : "";
  *this = std::move(loaded);
}

}  // namespace ddprun::train
