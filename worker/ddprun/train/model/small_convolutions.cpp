#include <ddprun/train/model/small_convolutions.h>

#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

namespace ddprun::train {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// Measured on a Sapphire Rapids core, in batches of 128: from these on, products are faster.
constexpr std::int64_t kSmall = 64;  // positions of an image after the convolution, at most
constexpr std::int64_t kManyChannels =
    512;  // before or after it, for the forward pass and the input's gradient

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

/// A square or other window that slides over an image.
struct Window {
  std::int64_t height, width, stride_y, stride_x, pad_y, pad_x;

  std::int64_t rows(std::int64_t side) const { return (side + 2 * pad_y - height) / stride_y + 1; }
  std::int64_t columns(std::int64_t side) const { return (side + 2 * pad_x - width) / stride_x + 1; }
};

bool is_small(const Tensor& input_BCHW, const Tensor& weight_KCHW, const Window& window, IntArrayRef dilation,
              bool transposed, std::int64_t groups) {
  if (transposed || groups != 1 || !std::ranges::all_of(dilation, [](auto step) { return step == 1; }))
    return false;
  for (const auto* tensor : {&input_BCHW, &weight_KCHW})
    if (tensor->dim() != 4 || tensor->scalar_type() != at::kBFloat16 || !tensor->device().is_cpu())
      return false;
  if (input_BCHW.numel() == 0 || !input_BCHW.is_contiguous(kLast)) return false;
  const auto positions = window.rows(input_BCHW.size(2)) * window.columns(input_BCHW.size(3));
  return positions > 0 && positions <= kSmall;
}

bool has_many_channels(const Tensor& weight_KCHW) {
  return std::max(weight_KCHW.size(0), weight_KCHW.size(1)) >= kManyChannels;
}

Window window_of(const Tensor& weight_KCHW, IntArrayRef stride, IntArrayRef padding) {
  if (weight_KCHW.dim() != 4 || stride.empty() || padding.empty()) return {1, 1, 1, 1, 0, 0};
  return {weight_KCHW.size(2), weight_KCHW.size(3), stride.front(),
          stride.back(),       padding.front(),     padding.back()};
}

/// returns  [B, H, W, C] contiguous
Tensor pixels_of(const Tensor& image_BCHW) { return image_BCHW.contiguous(kLast).permute({0, 2, 3, 1}); }

/// im2col. returns  [B * rows * columns, height * width * C]: what the window sees at each position
Tensor im2col(const Tensor& image_BCHW, const Window& window) {
  auto pixels_BHWC = pixels_of(image_BCHW);
  if (window.pad_y > 0 || window.pad_x > 0)
    pixels_BHWC =
        at::constant_pad_nd(pixels_BHWC, {0, 0, window.pad_x, window.pad_x, window.pad_y, window.pad_y});
  const auto batch = image_BCHW.size(0), channels = image_BCHW.size(1);
  const auto rows = window.rows(image_BCHW.size(2)), columns = window.columns(image_BCHW.size(3));
  const auto down = pixels_BHWC.stride(1), right = pixels_BHWC.stride(2);
  return pixels_BHWC
      .as_strided({batch, rows, columns, window.height, window.width, channels},
                  {pixels_BHWC.stride(0), down * window.stride_y, right * window.stride_x, down, right, 1})
      .reshape({batch * rows * columns, window.height * window.width * channels});
}

/// rows [B * H * W, C] as an image [B, C, H, W], channels-last
Tensor image_of(const Tensor& rows, std::int64_t batch, std::int64_t height, std::int64_t width) {
  return rows.view({batch, height, width, rows.size(1)}).permute({0, 3, 1, 2});
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, std::int64_t groups) {
  const auto window = window_of(weight, stride, padding);
  if (!is_small(input, weight, window, dilation, transposed, groups) || !has_many_channels(weight))
    return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding, dilation,
                                                      transposed, output_padding, groups);
  auto rows = at::mm(im2col(input, window), weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1}).t());
  if (bias && bias->defined()) rows += *bias;
  return image_of(rows, input.size(0), window.rows(input.size(2)), window.columns(input.size(3)));
}

/// The input's gradient is the convolution of the result's with the weights turned around.
Tensor gradient_of_input(const Tensor& grad, const Tensor& input, const Tensor& weight,
                         const Window& window) {
  const Window turned = {
      window.height, window.width, 1, 1, window.height - 1 - window.pad_y, window.width - 1 - window.pad_x};
  const auto weights = weight.permute({2, 3, 0, 1}).flip({0, 1}).reshape({-1, weight.size(1)});
  return image_of(at::mm(im2col(grad, turned), weights), input.size(0), input.size(2), input.size(3));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::OptionalIntArrayRef bias_sizes,
    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
    IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  const auto window = window_of(weight, stride, padding);
  const auto by_onednn = [&](std::array<bool, 3> which) {
    return at::compositeexplicitautograd::convolution_backward(grad, input, weight, bias_sizes, stride,
                                                               padding, dilation, transposed, output_padding,
                                                               groups, which);
  };
  if (!is_small(input, weight, window, dilation, transposed, groups)) return by_onednn(wanted);
  Tensor of_input, of_weight, of_bias;
  if (wanted[0]) {
    const bool as_product = has_many_channels(weight) && window.stride_y == 1 && window.stride_x == 1 &&
                            window.pad_y < window.height && window.pad_x < window.width;
    of_input = as_product ? gradient_of_input(grad, input, weight, window)
                          : std::get<0>(by_onednn({true, false, false}));
  }
  if (wanted[1])
    of_weight = at::mm(pixels_of(grad).reshape({-1, weight.size(0)}).t(), im2col(input, window))
                    .view({weight.size(0), window.height, window.width, weight.size(1)})
                    .permute({0, 3, 1, 2});
  if (wanted[2]) of_bias = grad.sum({0, 2, 3});
  return {of_input, of_weight, of_bias};
}

}  // namespace

void compute_small_convolutions_as_products() {
  static torch::Library* library = nullptr;  // until the process ends: other threads may be computing then
  if (library != nullptr) return;
  library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("convolution", TORCH_FN(convolution));
  library->impl("convolution_backward", TORCH_FN(convolution_backward));
}

}  // namespace ddprun::train
