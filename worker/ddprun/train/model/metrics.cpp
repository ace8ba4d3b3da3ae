#include <ddprun/train/model/metrics.h>

#include <torch/types.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace ddprun::train {
namespace {

at::Tensor first(const at::Tensor& values, std::int64_t count) {
  return count < 0 ? values : values.slice(0, 0, count);
}

}  // namespace

void Mean::add(const at::Tensor& values, std::int64_t count) {
  const torch::NoGradGuard no_grad;
  const auto taken = first(values.detach(), count);
  const auto sum = taken.sum(torch::kFloat64);
  sum_ = sum_.defined() ? sum_ + sum : sum;
  count_ += static_cast<double>(taken.numel());
}

double Mean::value() const {
  return count_ == 0 ? std::numeric_limits<double>::quiet_NaN() : sums()[0] / count_;
}

std::vector<double> Mean::sums() const { return {sum_.defined() ? sum_.item<double>() : 0, count_}; }

void Mean::set_sums(const std::vector<double>& sums) {
  if (sums.size() != 2)
    throw std::invalid_argument("mean: expected two sums, got " + std::to_string(sums.size()));
  sum_ = torch::full({}, sums[0], torch::kFloat64);
  count_ = sums[1];
}

ConfusionMatrix::ConfusionMatrix(std::int64_t classes) : classes_(classes) {
  if (classes < 1)
    throw std::invalid_argument("confusion matrix: expected 1 class or more, got " + std::to_string(classes));
}

void ConfusionMatrix::add(const at::Tensor& scores, const at::Tensor& target, std::int64_t count) {
  const torch::NoGradGuard no_grad;
  const auto places = first(target * classes_ + scores.argmax(1), count);
  if (!counts_.defined()) counts_ = torch::zeros({classes_ * classes_}, places.options());
  counts_ = counts_.index_add(0, places, torch::ones_like(places));
}

at::Tensor ConfusionMatrix::counts() const {
  if (!counts_.defined()) return torch::zeros({classes_, classes_}, torch::kInt64);
  return counts_.cpu().view({classes_, classes_});
}

std::vector<double> ConfusionMatrix::sums() const {
  const auto values = counts().to(torch::kFloat64);
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

void ConfusionMatrix::set_sums(const std::vector<double>& sums) {
  if (static_cast<std::int64_t>(sums.size()) != classes_ * classes_)
    throw std::invalid_argument("confusion matrix: expected " + std::to_string(classes_ * classes_) +
                                " sums, got " + std::to_string(sums.size()));
  counts_ = torch::tensor(sums, torch::kFloat64).to(torch::kInt64);
}

}  // namespace ddprun::train
