#include "worker/sam/model/two_way_transformer.h"

#include <torch/types.h>

#include <algorithm>

namespace ddprun::models {
namespace {

// Of the layers; attention_downsample_rate is of the last attention alone, in transformers too.
constexpr std::int64_t kLayersDownsampleRate = 2;

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
  // With keys of their own the prompts are like images, without they are like tokens.
  const auto batch = images * key.size(1);
  const auto heads = [&](const torch::Tensor& x) {
    return x.reshape({batch, x.size(0) * x.size(1) * x.size(2) / batch, heads_, -1}).transpose(1, 2);
  };
  const auto out =
      torch::scaled_dot_product_attention(heads(query_BPNC), heads(k_proj_(key)), heads(v_proj_(value)));
  return out_proj_(out.transpose(1, 2).reshape({images, prompts, tokens, -1}));
}

SamTwoWayAttentionBlockImpl::SamTwoWayAttentionBlockImpl(const SamConfig::MaskDecoder& config, bool first)
    : first_(first),
      self_attn_(config, 1),
      layer_norm1_(layer_norm(config.hidden_size, config.layer_norm_eps)),
      cross_attn_token_to_image_(config, kLayersDownsampleRate),
      layer_norm2_(layer_norm(config.hidden_size, config.layer_norm_eps)),
      mlp_(config.hidden_size, config.mlp_dim, config.hidden_act),
      layer_norm3_(layer_norm(config.hidden_size, config.layer_norm_eps)),
      layer_norm4_(layer_norm(config.hidden_size, config.layer_norm_eps)),
      cross_attn_image_to_token_(config, kLayersDownsampleRate) {
  register_module("self_attn", self_attn_);
  register_module("layer_norm1", layer_norm1_);
  register_module("cross_attn_token_to_image", cross_attn_token_to_image_);
  register_module("layer_norm2", layer_norm2_);
  register_module("mlp", mlp_);
  register_module("layer_norm3", layer_norm3_);
  register_module("layer_norm4", layer_norm4_);
  register_module("cross_attn_image_to_token", cross_attn_image_to_token_);
}

TwoWay SamTwoWayAttentionBlockImpl::forward(const torch::Tensor& token, const torch::Tensor& image,
                                            const torch::Tensor& token_positions,
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

SamTwoWayTransformerImpl::SamTwoWayTransformerImpl(const SamConfig::MaskDecoder& config)
    : final_attn_token_to_image_(config, config.attention_downsample_rate),
      layer_norm_final_attn_(
          layer_norm(config.hidden_size, 1e-5)) {  // in transformers it has torch's default
  register_module("layers", layers_);
  register_module("final_attn_token_to_image", final_attn_token_to_image_);
  register_module("layer_norm_final_attn", layer_norm_final_attn_);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(SamTwoWayAttentionBlock(config, i == 0));
}

TwoWay SamTwoWayTransformerImpl::forward(const torch::Tensor& tokens, torch::Tensor image,
                                         const torch::Tensor& image_positions) {
  auto token_BPNC = tokens;
  for (const auto& module : *layers_)
    std::tie(token_BPNC, image) =
        module->as<SamTwoWayAttentionBlock>()->forward(token_BPNC, image, tokens, image_positions);
  const auto seen = final_attn_token_to_image_(token_BPNC + tokens, image + image_positions, image);
  return {layer_norm_final_attn_(token_BPNC + seen), image};
}

}  // namespace ddprun::models
