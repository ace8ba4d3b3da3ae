#pragma once

#include <ATen/core/ivalue.h>

#include <ddprun/train/optim/optimizer.h>

namespace ddprun::train {

/// Loss scaling for float16, torch.amp.GradScaler for one optimizer:
///
///   scaler.scale(loss).backward();
///   scaler.unscale(optimizer);        // only if gradients are clipped
///   clip_grad_norm(parameters, 1.0);
///   scaler.step(optimizer);           // skipped if a gradient is infinite or NaN
///   scaler.update();
///
/// Micikevicius et al. 2018, "Mixed Precision Training", section 3.2
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;  ///< the scale grows after this many steps without a skip
    bool enabled = true;                  ///< false: no scaling
  };
  /// Sums over ranks, in place, a float32 tensor that is 1 if this rank found an infinite gradient. Needed if
  /// ranks hold different gradients (ZeRO 2 and 3, fully sharded).
  using Reduce = std::function<void(at::Tensor&)>;

  /// throws  std::invalid_argument if growth_factor <= 1 or backoff_factor >= 1
  GradScaler(at::Device device, const Options& options);

  at::Tensor scale(const at::Tensor& loss) const { return options_.enabled ? loss * scale_ : loss; }

  /// Divides the gradients by the scale, in place, and checks whether any is infinite or NaN.
  /// throws  std::logic_error if called twice before update(); std::invalid_argument for a float16 gradient
  void unscale(torch::optim::Optimizer& optimizer, const Reduce& reduce = nullptr);

  /// unscale() if not done yet, then optimizer.step() if all gradients are finite. Waits for the device.
  /// returns  whether the optimizer took its step
  /// throws   std::logic_error if called twice before update()
  bool step(torch::optim::Optimizer& optimizer, const Reduce& reduce = nullptr);

  /// The same without waiting for the device: the optimizer's kernels read a flag on the device.
  /// returns  the flag, a float32 scalar: 1 if the step is skipped, else 0
  const at::Tensor& step_on_device(torch::optim::Optimizer& optimizer, HeldBack& held,
                                   const Reduce& reduce = nullptr);

  /// Lowers the scale after a skipped step; raises it after growth_interval steps without one.
  /// throws  std::logic_error unless unscale() or step() was called since the last update()
  void update();

  /// Drops an unscale() or step() that was to be followed by update(): the next step begins.
  void abandon_step() { stage_ = Stage::kReady; }

  double get_scale() const { return options_.enabled ? scale_.item<double>() : 1; }
  std::int64_t skipped_steps() const;  ///< may wait for the device
  bool enabled() const { return options_.enabled; }

  /// Python's keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty if
  /// disabled.
  c10::impl::GenericDict state_dict() const;
  /// Does nothing if disabled.
  /// throws  std::invalid_argument naming a key that is missing or has the wrong type
  void load_state_dict(const c10::impl::GenericDict& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  void before_step(torch::optim::Optimizer& optimizer, const Reduce& reduce);

  Options options_;
  at::Tensor scale_, growth_tracker_, found_inf_;
  at::Tensor skipped_on_device_;  // steps of step_on_device(), float32
  Stage stage_ = Stage::kReady;
  std::int64_t skipped_steps_ = 0;
};

struct ClipNormOptions {
  double norm_type = 2;             ///< may be infinity
  bool error_if_nonfinite = false;  ///< throws instead of scaling by infinity or NaN; waits for the device
  /// If ranks hold parts of the gradients: sums over ranks, in place, this rank's partial norm to the power
  /// of norm_type (for infinity: takes the maximum).
  std::function<void(at::Tensor&)> reduce = {};
};

/// Scales the parameters' gradients, in place, so that their total norm is at most max_norm:
/// torch.nn.utils.clip_grad_norm_, without waiting for the device.
///
///   g <- g min(1, max_norm / (norm + 1e-6))
///
/// returns  the norm before scaling, a scalar on the first gradient's device; 0 without gradients
/// throws   std::runtime_error if the norm is not finite and error_if_nonfinite
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                          const ClipNormOptions& options = {});

/// Clamps the gradients, in place, to [-limit, limit]: torch.nn.utils.clip_grad_value_.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double limit);

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
inline at::Tensor channels_last(const at::Tensor& input) {
  return input.dim() == 4 ? input.contiguous(at::MemoryFormat::ChannelsLast) : input;
}

}  // namespace ddprun::train
