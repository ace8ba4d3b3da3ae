#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// Of the forward pass. Parameters, gradients and optimizer states always stay float32.
enum class Precision { k32, kBf16Mixed, k16Mixed };

/// While it lives, this thread's operators run in that precision where it is safe, as under torch.autocast.
/// Put the forward pass and the loss inside, backward outside. The end of the outermost scope frees
/// autocast's cached weights.
class [[nodiscard]] AutocastScope {
 public:
  /// device  of the tensors in the computation, CPU or CUDA
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool active_, was_enabled_ = false, was_caching_ = false;
  c10::ScalarType previous_type_{};
};

/// torch.set_float32_matmul_precision() and torch.backends.cudnn.benchmark, for the whole process.
///
/// matmul           "highest", "high" (TF32 on a GPU) or "medium" (bf16, also on CPUs that have it): for
///                  float32 matrix products, and on a GPU also convolutions
/// cudnn_benchmark  cuDNN tries its algorithms for each new shape and keeps the fastest
/// throws           std::invalid_argument for any other word
void set_matmul_precision(const std::string& matmul, bool cudnn_benchmark);

/// module.to(memory_format=torch.channels_last), for 4-D parameters and buffers (convolutions' weights). Call
/// it before creating the optimizer and DDP.
void to_channels_last(torch::nn::Module& module);

/// An input [B, C, H, W] in that layout; leaves others unchanged.
at::Tensor channels_last(const at::Tensor& input);

}  // namespace ddprun::train
