#include <ddprun/train/optim/losses.h>

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <torch/types.h>

namespace ddprun::train {
namespace {

at::Tensor mean_of_sample(const at::Tensor& elements) {
  return elements.dim() > 1 ? elements.flatten(1).mean(1) : elements;
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target, double label_smoothing) {
  return at::cross_entropy_loss(scores, target, {}, at::Reduction::None, /*ignore_index=*/-100,
                                label_smoothing);
}

at::Tensor soft_cross_entropy(const at::Tensor& scores, const at::Tensor& target) {
  return at::cross_entropy_loss(scores, target, {}, at::Reduction::None);
}

at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target) {
  return mean_of_sample(at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::None));
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK(output.sizes() == target.sizes(), "squared error: expected a target of shape ", output.sizes(),
              ", got ", target.sizes());
  return mean_of_sample(at::mse_loss(output, target, at::Reduction::None));
}

}  // namespace ddprun::train
