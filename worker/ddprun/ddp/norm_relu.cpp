#include <ddprun/ddp/norm_relu.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

// The loops over channels become vector instructions of the CPU that it runs on.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define DDPRUN_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDPRUN_VECTORISED
#endif

namespace ddprun::ddp {
namespace {

using at::Tensor;
using Bits = std::uint16_t;  ///< a bfloat16: the upper half of a float

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr std::int64_t kFewRows = 256;  // whose sums are exact enough in float

bool fuses = false;

float to_float(Bits value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

/// Rounds to the nearest, ties to even.
Bits to_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = static_cast<Bits>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  return value != value ? Bits{0x7FC0} : rounded;
}

/// Adds, per channel, the distances of the rows to the shift, and their squares.
DDPRUN_VECTORISED void add_distances(const Bits* __restrict x, std::int64_t rows, std::int64_t channels,
                                     const float* __restrict shift, float* __restrict sum,
                                     float* __restrict squares) {
  for (std::int64_t row = 0; row < rows; ++row, x += channels)
    for (std::int64_t c = 0; c < channels; ++c) {
      const float distance = to_float(x[c]) - shift[c];
      sum[c] += distance;
      squares[c] += distance * distance;
    }
}

/// y = relu(x * scale + offset + residual); NaN stays NaN.
DDPRUN_VECTORISED void scale_relu(const Bits* __restrict x, const Bits* __restrict residual,
                                  std::int64_t rows, std::int64_t channels, const float* __restrict scale,
                                  const float* __restrict offset, Bits* __restrict y) {
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels)
    if (residual == nullptr) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const float value = to_float(x[c]) * scale[c] + offset[c];
        y[c] = to_bits(value < 0 ? 0 : value);
      }
    } else {
      for (std::int64_t c = 0; c < channels; ++c) {
        const float value = to_float(x[c]) * scale[c] + offset[c] + to_float(residual[c]);
        y[c] = to_bits(value < 0 ? 0 : value);
      }
      residual += channels;
    }
}

/// g = dy where y > 0; adds g, and g times the distance of x to the mean, per channel.
DDPRUN_VECTORISED void add_gradients(const Bits* __restrict dy, const Bits* __restrict y,
                                     const Bits* __restrict x, std::int64_t rows, std::int64_t channels,
                                     const float* __restrict mean, float* __restrict sum,
                                     float* __restrict products, Bits* __restrict g) {
  for (std::int64_t row = 0; row < rows; ++row, dy += channels, y += channels, x += channels, g += channels)
    for (std::int64_t c = 0; c < channels; ++c) {
      const Bits passed = to_float(y[c]) <= 0 ? Bits{0} : dy[c];
      const float gradient = to_float(passed);
      g[c] = passed;
      sum[c] += gradient;
      products[c] += gradient * (to_float(x[c]) - mean[c]);
    }
}

/// dx = g * scale + x * slope + offset
DDPRUN_VECTORISED void combine(const Bits* __restrict g, const Bits* __restrict x, std::int64_t rows,
                               std::int64_t channels, const float* __restrict scale,
                               const float* __restrict slope, const float* __restrict offset,
                               Bits* __restrict dx) {
  for (std::int64_t row = 0; row < rows; ++row, g += channels, x += channels, dx += channels)
    for (std::int64_t c = 0; c < channels; ++c)
      dx[c] = to_bits(to_float(g[c]) * scale[c] + to_float(x[c]) * slope[c] + offset[c]);
}

Bits* bits_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<Bits*>(tensor.data_ptr()) : nullptr;
}

/// A batch of images as a matrix: a row per pixel.
struct Matrix {
  std::int64_t rows, channels;
  explicit Matrix(const Tensor& image_BCHW)
      : rows(image_BCHW.numel() / image_BCHW.size(1)), channels(image_BCHW.size(1)) {}

  void for_rows(const std::function<void(std::int64_t first, std::int64_t count)>& work) const {
    at::parallel_for(0, rows, std::max<std::int64_t>(1, 65536 / channels),
                     [&](std::int64_t first, std::int64_t end) { work(first, end - first); });
  }

  /// Two sums per channel. add  adds those of some rows to two arrays
  using Add = std::function<void(std::int64_t first, std::int64_t count, float* one, float* other)>;
  std::vector<double> sums(const Add& add) const {
    const std::int64_t parts = std::clamp<std::int64_t>(rows / kFewRows, 1, at::get_num_threads());
    std::vector<std::vector<double>> of_parts(static_cast<std::size_t>(parts));
    at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        of_parts[static_cast<std::size_t>(part)] =
            sums_of(rows * part / parts, rows * (part + 1) / parts, add);
    });
    auto total = std::move(of_parts[0]);
    for (std::size_t part = 1; part < of_parts.size(); ++part)
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += of_parts[part][i];
    return total;
  }

 private:
  std::vector<double> sums_of(std::int64_t first, std::int64_t end, const Add& add) const {
    const auto size = static_cast<std::size_t>(2 * channels);
    std::vector<double> total(size);
    std::vector<float> few(size);
    for (; first < end; first += kFewRows) {
      std::ranges::fill(few, 0.F);
      add(first, std::min(kFewRows, end - first), few.data(), few.data() + channels);
      for (std::size_t i = 0; i < size; ++i) total[i] += few[i];
    }
    return total;
  }
};

/// Per channel, of a batch.
struct Moments {
  Tensor mean, inverse;  ///< float [C]; 1 / sqrt(var + eps)
};

Moments moments(const Tensor& input, const norm_relu::Parameters& parameters) {
  const Matrix matrix(input);
  const auto* x = bits_of(input);
  const auto channels = static_cast<std::size_t>(matrix.channels);
  std::vector<float> shift(channels);  // near the mean, so that squares of distances are small
  for (std::size_t c = 0; c < channels; ++c) shift[c] = to_float(x[c]);
  const auto sums = matrix.sums([&](std::int64_t first, std::int64_t count, float* sum, float* squares) {
    add_distances(x + first * matrix.channels, count, matrix.channels, shift.data(), sum, squares);
  });
  const auto options = at::TensorOptions().dtype(at::kFloat);
  Moments s{at::empty({matrix.channels}, options), at::empty({matrix.channels}, options)};
  auto var = at::empty({matrix.channels}, options);
  const auto count = static_cast<double>(matrix.rows);
  for (std::size_t c = 0; c < channels; ++c) {
    const double distance = sums[c] / count;
    const double variance = std::max(0.0, sums[channels + c] / count - distance * distance);
    s.mean.data_ptr<float>()[c] = static_cast<float>(shift[c] + distance);
    s.inverse.data_ptr<float>()[c] = static_cast<float>(1 / std::sqrt(variance + parameters.eps));
    var.data_ptr<float>()[c] = static_cast<float>(variance * count / (count - 1));
  }
  if (parameters.running_mean.defined()) {
    parameters.running_mean.mul_(1 - parameters.momentum).add_(s.mean, parameters.momentum);
    parameters.running_var.mul_(1 - parameters.momentum).add_(var, parameters.momentum);
  }
  return s;
}

struct NormRelu : torch::autograd::Function<NormRelu> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& residual, const Tensor& weight, const Tensor& bias,
                        const norm_relu::Parameters& parameters) {
    const Matrix matrix(input);
    const Moments s = moments(input, parameters);
    const Tensor scale = weight * s.inverse, offset = bias - s.mean * scale;
    Tensor y = at::empty_like(input);
    const auto* added = residual ? bits_of(*residual) : nullptr;
    matrix.for_rows([&](std::int64_t first, std::int64_t count) {
      const auto at = first * matrix.channels;
      scale_relu(bits_of(input) + at, added == nullptr ? nullptr : added + at, count, matrix.channels,
                 scale.data_ptr<float>(), offset.data_ptr<float>(), bits_of(y) + at);
    });
    context->save_for_backward({input, y, weight, s.mean, s.inverse});
    context->saved_data["adds"] = residual.has_value();
    return y;
  }

  ///   dx = weight / sqrt(var + eps) (g - mean(g) - x_hat mean(g x_hat))
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      const std::vector<Tensor>& gradient) {
    if (at::GradMode::is_enabled())
      throw std::invalid_argument("SyncBatchNorm: a second derivative (create_graph) is not implemented");
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &y = saved[1], &weight = saved[2], &mean = saved[3], &inverse = saved[4];
    const Matrix matrix(x);
    const auto dy = gradient[0].to(at::kBFloat16).contiguous(kLast);
    Tensor g = at::empty_like(x);
    const auto sums = matrix.sums([&](std::int64_t first, std::int64_t count, float* sum, float* products) {
      const auto at = first * matrix.channels;
      add_gradients(bits_of(dy) + at, bits_of(y) + at, bits_of(x) + at, count, matrix.channels,
                    mean.data_ptr<float>(), sum, products, bits_of(g) + at);
    });
    const auto both = torch::tensor(sums, at::kDouble).view({2, matrix.channels}).to(at::kFloat);
    const Tensor of_bias = both[0], of_weight = both[1] * inverse;
    const auto count = static_cast<double>(matrix.rows);
    const Tensor scale = weight * inverse, slope = -scale * inverse * of_weight / count,
                 offset = -(scale * of_bias / count + slope * mean);
    Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = at::empty_like(x);
      matrix.for_rows([&](std::int64_t first, std::int64_t rows) {
        const auto at = first * matrix.channels;
        combine(bits_of(g) + at, bits_of(x) + at, rows, matrix.channels, scale.data_ptr<float>(),
                slope.data_ptr<float>(), offset.data_ptr<float>(), bits_of(dx) + at);
      });
    }
    return {dx, context->saved_data["adds"].toBool() ? g : Tensor(), of_weight, of_bias, Tensor()};
  }
};

bool is_fast(const Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.scalar_type() == at::kBFloat16 &&
         tensor.is_contiguous(kLast);
}

}  // namespace

void fuse_norm_relu() { fuses = true; }

namespace norm_relu {

bool fits(const Tensor& input, const Parameters& parameters) {
  const auto is_float = [](const Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == at::kFloat;
  };
  return fuses && is_fast(input) && input.numel() > input.size(1) && is_float(parameters.weight) &&
         is_float(parameters.bias) &&
         (!parameters.running_mean.defined() || is_float(parameters.running_mean));
}

bool fits(const Tensor& residual, const Tensor& input) {
  return is_fast(residual) && residual.sizes() == input.sizes();
}

Tensor forward(const Tensor& input, const Tensor& residual, const Parameters& parameters) {
  return NormRelu::apply(input, residual.defined() ? std::optional(residual) : std::nullopt,
                         parameters.weight, parameters.bias, parameters);
}

}  // namespace norm_relu
}  // namespace ddprun::ddp
