#pragma once

#include <functional>
#include <iosfwd>
#include <optional>

#include <torch/nn/modules/batchnorm.h>

#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// Batch normalisation that, in training, uses the statistics of all ranks' batches together, like
/// torch.nn.SyncBatchNorm: N ranks compute what one rank computes on the union of their batches. On CPU and
/// CUDA; batches may differ in size, and a rank's batch may be empty.
///
/// Options, parameters and buffers are BatchNorm's. In eval mode, and before convert_sync_batchnorm(), it is
/// torch::batch_norm of this rank's batch.
///
///   y = (x - mean) / sqrt(var + eps) * weight + bias      mean and variance per channel (biased)
///
/// The gradients of weight and bias are this rank's; DistributedDataParallel averages them.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options);

  /// input    [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W], float, double, half or bfloat16 (then the
  ///          parameters may be float); contiguous or channels_last is fastest
  /// returns  input's shape and type
  /// throws   std::invalid_argument for another shape, or if all ranks together have fewer than two values
  ///          per channel in training
  torch::Tensor forward(const torch::Tensor& input);

  /// relu(forward(input) + residual()), in fewer passes where fuse_norm_relu() says.
  ///
  /// residual  gives a tensor of input's shape; nullptr: nothing is added. Without fusion it is called after
  ///           forward(), as Python's models do: the order of forward operations is that of the gradients,
  ///           and so of DistributedDataParallel's buckets
  torch::Tensor forward_relu(const torch::Tensor& input,
                             const std::function<torch::Tensor()>& residual = nullptr);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  friend int set_group(torch::nn::Module& module, const std::optional<ProcessGroup>& group);
  double count_batch();
  torch::Tensor normalized(const torch::Tensor& input, double momentum);

  std::optional<ProcessGroup> group_;  ///< nullopt: not synchronised
};
TORCH_MODULE(SyncBatchNorm);

/// From now on, every SyncBatchNorm in the module, or the module itself if it is one, takes its statistics
/// over the group's ranks. All ranks must then run these layers equally often and in the same order, forward
/// and backward. BatchNorm layers cannot be replaced: C++ modules name their layers' types.
///
/// returns  how many there are
/// throws   std::invalid_argument naming a BatchNorm in the module, or if there is nothing to convert
int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

/// The inverse: the module no longer keeps the group's connections open.
void forget_group(torch::nn::Module& module);

/// Whether there is a SyncBatchNorm or a BatchNorm in the module, or the module is one.
bool has_batch_norm(const torch::nn::Module& module);

}  // namespace ddprun::ddp
