#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace ddprun::train {

// Metrics whose state is sums: the sum over ranks gives the exact metric of all samples. Sums stay on the
// samples' device until they are read, so adding does not wait for it.

/// The mean of values, torchmetrics' MeanMetric (in float64). For `scores.argmax(1) == target` it is
/// Accuracy(task="multiclass", average="micro").
class Mean {
 public:
  /// values  float [B]; takes the first `count`, -1: all
  void add(const at::Tensor& values, std::int64_t count = -1);

  double value() const;  ///< NaN without values
  double count() const { return count_; }
  std::vector<double> sums() const;  ///< {sum, count}
  void set_sums(const std::vector<double>& sums);

 private:
  at::Tensor sum_;
  double count_ = 0;
};

/// How often class i was predicted as class j: torchmetrics' MulticlassConfusionMatrix.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::int64_t classes);

  /// scores  [B, K], higher for likelier classes
  /// target  int64 [B], class numbers
  /// count   samples to take; -1: all
  /// throws  c10::Error for a target outside [0, K) (on CUDA: later, when the kernel runs)
  void add(const at::Tensor& scores, const at::Tensor& target, std::int64_t count = -1);

  /// int64 [K, K] on the CPU: rows are targets, columns predictions.
  at::Tensor counts() const;
  std::vector<double> sums() const;  ///< counts(), row by row
  void set_sums(const std::vector<double>& sums);

 private:
  std::int64_t classes_;
  at::Tensor counts_;
};

/// Element-wise over ranks, such as ddp::all_reduce_sum with a group.
using SumOverRanks = std::function<std::vector<double>(std::vector<double>)>;

/// Turns each rank's metrics into those of all samples, in one reduction. All ranks pass the same metrics.
template <typename... Metrics>
void sum_over_ranks(const SumOverRanks& sum, Metrics&... metrics) {
  std::vector<double> all;
  const auto append = [&](const std::vector<double>& sums) {
    all.insert(all.end(), sums.begin(), sums.end());
  };
  (append(metrics.sums()), ...);
  all = sum(std::move(all));
  auto next = all.begin();
  const auto take = [&](auto& metric) {
    const auto size = static_cast<std::ptrdiff_t>(metric.sums().size());
    metric.set_sums({next, next + size});
    next += size;
  };
  (take(metrics), ...);
}

}  // namespace ddprun::train
