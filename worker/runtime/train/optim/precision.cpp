#include <ddprun/train/optim/precision.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <stdexcept>

namespace ddprun::train {

void set_matmul_precision(const std::string& matmul, bool cudnn_benchmark) {
  if (matmul != "highest" && matmul != "high" && matmul != "medium")
    throw std::invalid_argument("set_matmul_precision: expected highest, high or medium, got '" + matmul +
                                "'");
  at::globalContext().setFloat32MatmulPrecision(matmul);
  at::globalContext().setBenchmarkCuDNN(cudnn_benchmark);
}

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device)
    : device_(device), active_(precision != Precision::k32) {
  if (!active_) return;
  namespace autocast = at::autocast;
  was_caching_ = autocast::is_autocast_cache_enabled();
  was_enabled_ = autocast::is_autocast_enabled(device);
  previous_type_ = autocast::get_autocast_dtype(device);
  autocast::set_autocast_enabled(device, true);
  autocast::set_autocast_dtype(device, precision == Precision::kBf16Mixed ? at::kBFloat16 : at::kHalf);
  autocast::increment_nesting();
  autocast::set_autocast_cache_enabled(true);
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  namespace autocast = at::autocast;
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  autocast::set_autocast_enabled(device_, was_enabled_);
  autocast::set_autocast_dtype(device_, previous_type_);
  autocast::set_autocast_cache_enabled(was_caching_);
}

void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    if (parameter.dim() == 4)
      parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  for (auto& buffer : module.buffers())
    if (buffer.dim() == 4) buffer.set_data(buffer.contiguous(at::MemoryFormat::ChannelsLast));
}

at::Tensor channels_last(const at::Tensor& input) {
  return input.dim() == 4 ? input.contiguous(at::MemoryFormat::ChannelsLast) : input;
}

}  // namespace ddprun::train
