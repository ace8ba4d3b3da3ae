#include "worker/sam/model/mask_decoder.h"

#include <torch/types.h>

#include <cmath>
#include <vector>

namespace ddprun::models {
namespace {

torch::nn::ConvTranspose2d doubling(std::int64_t in, std::int64_t out) {
  return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2));
}

/// A transposed convolution of kernel and stride 2 as a product of matrices: the four pixels that each
/// becomes are side by side, [..., 4, channels] in the order of the kernel, and go where they belong when
/// there is but one channel left.
torch::Tensor four_pixels(const torch::Tensor& x, const torch::nn::ConvTranspose2d& convolution) {
  const auto weight = convolution->weight.permute({2, 3, 1, 0}).flatten(0, 2);
  return torch::linear(x, weight, convolution->bias.repeat({4})).unflatten(-1, {4, -1});
}

}  // namespace

SamMaskDecoderImpl::SamMaskDecoderImpl(const SamConfig::MaskDecoder& config)
    : masks_(1 + config.num_multimask_outputs),
      iou_token_(1, config.hidden_size),
      mask_tokens_(masks_, config.hidden_size),
      transformer_(config),
      upscale_conv1_(doubling(config.hidden_size, config.hidden_size / 4)),
      upscale_conv2_(doubling(config.hidden_size / 4, config.hidden_size / 8)),
      upscale_layer_norm_(layer_norm(config.hidden_size / 4, 1e-6)),
      iou_prediction_head_(config.hidden_size, config.iou_head_hidden_dim, masks_, config.iou_head_depth) {
  register_module("iou_token", iou_token_);
  register_module("mask_tokens", mask_tokens_);
  register_module("transformer", transformer_);
  register_module("upscale_conv1", upscale_conv1_);
  register_module("upscale_conv2", upscale_conv2_);
  register_module("upscale_layer_norm", upscale_layer_norm_);
  register_module("output_hypernetworks_mlps", output_hypernetworks_mlps_);
  register_module("iou_prediction_head", iou_prediction_head_);
  for (std::int64_t i = 0; i < masks_; ++i)
    output_hypernetworks_mlps_->push_back(
        SamFeedForward(config.hidden_size, config.hidden_size, config.hidden_size / 8, 3));
}

SamOutput SamMaskDecoderImpl::forward(const torch::Tensor& image, const torch::Tensor& image_positions,
                                      const torch::Tensor& prompts, bool multimask) {
  const auto images = image.size(0), prompts_each = prompts.defined() ? prompts.size(1) : 1;
  auto tokens = torch::cat({iou_token_->weight, mask_tokens_->weight})
                    .expand({images, prompts_each, 1 + masks_, image.size(3)});
  if (prompts.defined()) tokens = torch::cat({tokens, prompts.to(tokens.scalar_type())}, 2);
  const auto [tokens_BPNC, image_BPNC] = transformer_->forward(tokens, image, image_positions);

  const std::int64_t first = multimask ? 1 : 0, end = multimask ? masks_ : 1;
  std::vector<torch::Tensor> weights;
  for (auto i = first; i < end; ++i)
    weights.push_back(output_hypernetworks_mlps_[static_cast<std::size_t>(i)]->as<SamFeedForward>()->forward(
        tokens_BPNC.select(2, 1 + i)));
  const auto mask_BPM = torch::matmul(torch::stack(weights, 2), upscaled(image_BPNC).transpose(2, 3));
  const auto grid = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(image.size(2)))));
  // Rows of patches, their halves, the halves' halves; then columns.
  const auto masks = mask_BPM.view({images, prompts_each, end - first, grid, grid, 2, 2, 2, 2})
                         .permute({0, 1, 2, 3, 5, 7, 4, 6, 8})
                         .reshape({images, prompts_each, end - first, 4 * grid, 4 * grid});
  return {masks, iou_prediction_head_(tokens_BPNC.select(2, 0)).slice(2, first, end)};
}

/// returns  float [B, P, grid * grid * 16, hidden_size / 8]: every patch's pixels side by side
torch::Tensor SamMaskDecoderImpl::upscaled(const torch::Tensor& image) {
  const auto doubled = torch::gelu(upscale_layer_norm_(four_pixels(image, upscale_conv1_)));
  return torch::gelu(four_pixels(doubled, upscale_conv2_)).flatten(2, 4);
}

}  // namespace ddprun::models
