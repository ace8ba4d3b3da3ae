#include "worker/sam/model/mask_decoder.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

namespace ddprun::sam {
namespace {

// For the layers; attention_downsample_rate applies only to the last attention, as in transformers.
constexpr std::int64_t kLayersDownsampleRate = 2;

torch::nn::ConvTranspose2d doubling(std::int64_t in, std::int64_t out) {
  return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2));
}

/// A transposed convolution with kernel and stride 2 as a matrix product. The four pixels that each pixel
/// becomes stay side by side, [..., 4, channels] in the kernel's order; forward() moves them into place once
/// a single channel is left.
torch::Tensor four_pixels(const torch::Tensor& x, const torch::nn::ConvTranspose2d& convolution) {
  const auto weight = convolution->weight.permute({2, 3, 1, 0}).flatten(0, 2);
  return torch::linear(x, weight, convolution->bias.repeat({4})).unflatten(-1, {4, -1});
}

}  // namespace

SamAttentionImpl::SamAttentionImpl(const SamConfig::MaskDecoder& config, std::int64_t downsample_rate)
    : heads_(config.num_attention_heads),
      q_proj_(config.hidden_size, config.hidden_size / downsample_rate),
      k_proj_(config.hidden_size, config.hidden_size / downsample_rate),
      v_proj_(config.hidden_size, config.hidden_size / downsample_rate),
      out_proj_(config.hidden_size / downsample_rate, config.hidden_size) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("out_proj", out_proj_);
}

torch::Tensor SamAttentionImpl::forward(const torch::Tensor& query, const torch::Tensor& key,
                                        const torch::Tensor& value) {
  auto query_BPNC = q_proj_(query);
  const auto images = query.size(0), prompts = std::max(query.size(1), key.size(1)), tokens = query.size(2);
  if (query.size(1) < prompts) query_BPNC = query_BPNC.expand({-1, prompts, -1, -1});
  // If prompts have separate keys, treat them like images; otherwise, like tokens.
  const auto batch = images * key.size(1);
  const auto heads = [&](const torch::Tensor& x) {
    return x.reshape({batch, x.size(0) * x.size(1) * x.size(2) / batch, heads_, -1}).transpose(1, 2);
  };
  const auto out =
      torch::scaled_dot_product_attention(heads(query_BPNC), heads(k_proj_(key)), heads(v_proj_(value)));
  return out_proj_(out.transpose(1, 2).reshape({images, prompts, tokens, -1}));
}

void SamAttentionImpl::attend_to_alike() {
  const torch::NoGradGuard no_grad;
  constexpr double kScale = 2;  // 1 attends to everything for hundreds of steps, 4 to almost nothing
  q_proj_->weight *= kScale;
  k_proj_->weight.copy_(q_proj_->weight);
  k_proj_->bias.copy_(q_proj_->bias);
}

/// Tokens attend to each other and to the image, then the image to the tokens.
class SamTwoWayAttentionBlockImpl : public torch::nn::Module {
 public:
  /// first  the first layer: its tokens are their positions
  SamTwoWayAttentionBlockImpl(const SamConfig::MaskDecoder& config, bool first)
      : first_(first),
        self_attn_(register_module("self_attn", SamAttention(config, 1))),
        layer_norm1_(register_module("layer_norm1", layer_norm(config.hidden_size, config.layer_norm_eps))),
        cross_attn_token_to_image_(
            register_module("cross_attn_token_to_image", SamAttention(config, kLayersDownsampleRate))),
        layer_norm2_(register_module("layer_norm2", layer_norm(config.hidden_size, config.layer_norm_eps))),
        mlp_(register_module("mlp", SamMlp(config.hidden_size, config.mlp_dim, config.hidden_act))),
        layer_norm3_(register_module("layer_norm3", layer_norm(config.hidden_size, config.layer_norm_eps))),
        layer_norm4_(register_module("layer_norm4", layer_norm(config.hidden_size, config.layer_norm_eps))),
        cross_attn_image_to_token_(
            register_module("cross_attn_image_to_token", SamAttention(config, kLayersDownsampleRate))) {}

  /// token,token_positions  float [B, P, N, C]
  /// image                  float [B, P or 1, K, C]
  /// image_positions        float [1, 1, K, C]
  /// returns                the same shapes, with P
  TwoWay forward(const torch::Tensor& token, const torch::Tensor& image, const torch::Tensor& token_positions,
                 const torch::Tensor& image_positions) {
    torch::Tensor token_BPNC;
    if (first_) {
      token_BPNC = self_attn_(token, token, token);
    } else {
      const auto placed = token + token_positions;
      token_BPNC = token + self_attn_(placed, placed, token);
    }
    token_BPNC = layer_norm1_(token_BPNC);

    const auto placed_image = image + image_positions;
    token_BPNC = token_BPNC + cross_attn_token_to_image_(token_BPNC + token_positions, placed_image, image);
    token_BPNC = layer_norm2_(token_BPNC);
    token_BPNC = layer_norm3_(token_BPNC + mlp_(token_BPNC));

    const auto seen = cross_attn_image_to_token_(placed_image, token_BPNC + token_positions, token_BPNC);
    return {token_BPNC, layer_norm4_(image + seen)};
  }

 private:
  bool first_;
  SamAttention self_attn_;
  torch::nn::LayerNorm layer_norm1_;
  SamAttention cross_attn_token_to_image_;
  torch::nn::LayerNorm layer_norm2_;
  SamMlp mlp_;
  torch::nn::LayerNorm layer_norm3_, layer_norm4_;
  SamAttention cross_attn_image_to_token_;
};

SamTwoWayTransformerImpl::SamTwoWayTransformerImpl(const SamConfig::MaskDecoder& config)
    : final_attn_token_to_image_(config, config.attention_downsample_rate),
      layer_norm_final_attn_(layer_norm(config.hidden_size, 1e-5)) {  // torch's default, as in transformers
  register_module("layers", layers_);
  register_module("final_attn_token_to_image", final_attn_token_to_image_);
  register_module("layer_norm_final_attn", layer_norm_final_attn_);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(std::make_shared<SamTwoWayAttentionBlockImpl>(config, i == 0));
}

TwoWay SamTwoWayTransformerImpl::forward(const torch::Tensor& tokens, torch::Tensor image,
                                         const torch::Tensor& image_positions) {
  auto token_BPNC = tokens;
  for (const auto& module : *layers_)
    std::tie(token_BPNC, image) =
        module->as<SamTwoWayAttentionBlockImpl>()->forward(token_BPNC, image, tokens, image_positions);
  const auto seen = final_attn_token_to_image_(token_BPNC + tokens, image + image_positions, image);
  return {layer_norm_final_attn_(token_BPNC + seen), image};
}

SamMaskDecoderImpl::SamMaskDecoderImpl(const SamConfig::MaskDecoder& config)
    : masks_(1 + config.num_multimask_outputs),
      iou_token_(register_module("iou_token", torch::nn::Embedding(1, config.hidden_size))),
      mask_tokens_(register_module("mask_tokens", torch::nn::Embedding(masks_, config.hidden_size))),
      transformer_(register_module("transformer", SamTwoWayTransformer(config))),
      upscale_conv1_(register_module("upscale_conv1", doubling(config.hidden_size, config.hidden_size / 4))),
      upscale_conv2_(
          register_module("upscale_conv2", doubling(config.hidden_size / 4, config.hidden_size / 8))),
      upscale_layer_norm_(register_module("upscale_layer_norm", layer_norm(config.hidden_size / 4, 1e-6))),
      output_hypernetworks_mlps_(register_module("output_hypernetworks_mlps", torch::nn::ModuleList())),
      iou_prediction_head_(register_module(
          "iou_prediction_head",
          SamFeedForward(config.hidden_size, config.iou_head_hidden_dim, masks_, config.iou_head_depth))) {
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

}  // namespace ddprun::sam
