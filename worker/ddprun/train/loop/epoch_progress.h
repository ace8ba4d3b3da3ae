#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <ddprun/train/record/progress.h>

namespace ddprun::train {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Adds the seconds of its lifetime to a sum.
class SecondsAdded {
 public:
  explicit SecondsAdded(double& sum) : sum_(sum) {}
  ~SecondsAdded() { sum_ += seconds_since(begin_); }
  SecondsAdded(const SecondsAdded&) = delete;
  SecondsAdded& operator=(const SecondsAdded&) = delete;

 private:
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

/// The mean losses of the batches since the last optimizer step, on their device.
class StepLosses {
 public:
  void add(at::Tensor loss) { losses_.push_back(std::move(loss)); }
  void clear() { losses_.clear(); }
  std::int64_t batches() const { return static_cast<std::int64_t>(losses_.size()); }
  /// In double, on their device.
  at::Tensor sum() const { return at::stack(losses_).sum(at::kDouble); }
  /// Waits for the device.
  double mean() const { return sum().item<double>() / static_cast<double>(losses_.size()); }

 private:
  std::vector<at::Tensor> losses_;
};

/// The losses of an epoch's batches on this rank, including those before it was resumed.
class BatchLosses {
 public:
  BatchLosses() = default;
  BatchLosses(double sum, double batches) : sum_(sum), batches_(batches) {}

  void add(const StepLosses& step) {
    recent_ = recent_.defined() ? recent_ + step.sum() : step.sum();
    batches_ += static_cast<double>(step.batches());
  }
  /// Waits for the device.
  double sum() const { return sum_ + (recent_.defined() ? recent_.item<double>() : 0); }
  double batches() const { return batches_; }
  double mean() const { return sum() / std::max(batches_, 1.0); }

 private:
  double sum_ = 0, batches_ = 0;
  at::Tensor recent_;  // the sum of the losses just added, on its device
};

/// The progress of an epoch on this rank.
struct EpochProgress {
  std::vector<std::int64_t> indices;  ///< this rank's, from first_batch
  std::int64_t batch = 0;             ///< batches done
  std::int64_t batches = 0;           ///< in total
  std::int64_t to_count = 0;          ///< remaining examples, without padding
  std::int64_t samples = 0;           ///< done by all ranks
  std::int64_t first_batch = 0;       ///< where a resumed epoch started
  std::int64_t first_samples = 0;
  BatchLosses losses;            ///< only for Task::epoch_end_line
  double seconds_elsewhere = 0;  ///< in validation
  Clock::time_point begin = Clock::now();

  /// After `samples` of it, with this rank's remaining indices.
  ///
  /// without_padding  how many of them are not the sampler's padding, which comes last: it is trained on, but
  ///                  not counted in the metrics
  /// join             leaves the padding out
  /// drop_last        leaves out what does not fill a batch
  void start(std::vector<std::int64_t> remaining, std::int64_t without_padding, bool join, bool drop_last,
             std::int64_t batch_size, std::int64_t ranks) {
    indices = std::move(remaining);
    to_count = without_padding;
    if (join) indices.resize(static_cast<std::size_t>(to_count));
    if (drop_last) {
      const auto size = static_cast<std::size_t>(batch_size);
      indices.resize(indices.size() / size * size);
      to_count = std::min(to_count, static_cast<std::int64_t>(indices.size()));
    }
    first_samples = samples;
    batch = first_batch = samples / (ranks * batch_size);
  }

  bool done() const { return batch == batches; }
  /// Indices of the last `count` batches, those of one step.
  std::span<const std::int64_t> newest(std::int64_t count, std::int64_t batch_size) const {
    const auto end = static_cast<std::size_t>((batch - first_batch) * batch_size);
    const auto begin = static_cast<std::size_t>((batch - first_batch - count) * batch_size);
    return std::span(indices).subspan(begin, std::min(end, indices.size()) - begin);
  }

  double seconds() const { return seconds_since(begin) - seconds_elsewhere; }

  /// Without label, loss and measure.
  BarState bar() const {
    BarState bar;
    bar.done = batch;
    bar.total = batches;
    bar.first = first_batch;
    bar.seconds = seconds();
    bar.samples_per_second = static_cast<double>(samples - first_samples) / bar.seconds;
    return bar;
  }
};

/// An estimate of the remaining epochs, including their validation, from what has been measured.
///
/// epochs      after this one
/// steps_left  of the run, if it has a limit
/// between     seconds from an epoch to the next
inline double seconds_after_epoch(const BarState& bar, std::int64_t epochs,
                                  std::optional<std::int64_t> steps_left, std::int64_t accumulate,
                                  double between) {
  const auto batches = static_cast<double>(bar.total);
  auto left = static_cast<double>(epochs);
  if (steps_left)
    left = std::min(left, static_cast<double>(*steps_left * accumulate - (bar.total - bar.done)) / batches);
  const double batch = bar.seconds / static_cast<double>(std::max<std::int64_t>(bar.done - bar.first, 1));
  return std::max(left, 0.0) * (batch * batches + between);
}

}  // namespace ddprun::train
