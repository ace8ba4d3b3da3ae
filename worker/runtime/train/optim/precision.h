#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// What the forward pass computes with. Parameters, gradients and optimizer states are float32 in all.
enum class Precision { k32, kBf16Mixed, k16Mixed };

/// While it lives, this thread's operators run in the precision where that is safe, as under torch.autocast.
/// Put the forward pass and the loss inside, backward outside. The outermost scope's end frees the casted
/// weights that autocast keeps.
class [[nodiscard]] AutocastScope {
 public:
  /// device  of the tensors computed with, CPU or CUDA
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool active_, was_enabled_ = false, was_caching_ = false;
  c10::ScalarType previous_type_{};
};

/// Gives the module's 4-D parameters and buffers (convolutions' weights) the layout in which channels lie
/// together: module.to(memory_format=torch.channels_last). Before the optimizer and DDP are made.
void to_channels_last(torch::nn::Module& module);

/// An input [B, C, H, W] in that layout; one of another number of dimensions as it is.
at::Tensor channels_last(const at::Tensor& input);

}  // namespace ddprun::train
