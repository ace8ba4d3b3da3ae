#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <utility>

#include "worker/sam/model/layers.h"

namespace ddprun::models {

/// Attention whose inner size may be smaller than its input's.
class SamAttentionImpl : public torch::nn::Module {
 public:
  SamAttentionImpl(const SamConfig::MaskDecoder& config, std::int64_t downsample_rate);

  /// Where one of the two has P = 1, it is used for all prompts of the other, without copies of it.
  ///
  /// query      float [B, P, N, C]
  /// key,value  float [B, P, K, C]
  /// returns    float [B, P, N, C]
  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value);

 private:
  std::int64_t heads_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, out_proj_;
};
TORCH_MODULE(SamAttention);

/// Tokens and image.
using TwoWay = std::pair<torch::Tensor, torch::Tensor>;

/// Tokens look at each other and at the image, then the image at the tokens.
class SamTwoWayAttentionBlockImpl : public torch::nn::Module {
 public:
  /// first  the first layer's tokens are their own positions
  SamTwoWayAttentionBlockImpl(const SamConfig::MaskDecoder& config, bool first);

  /// token,token_positions  float [B, P, N, C]
  /// image                  float [B, P or 1, K, C]
  /// image_positions        float [1, 1, K, C]
  /// returns                the same shapes, with P
  TwoWay forward(const torch::Tensor& token, const torch::Tensor& image, const torch::Tensor& token_positions,
                 const torch::Tensor& image_positions);

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
TORCH_MODULE(SamTwoWayAttentionBlock);

class SamTwoWayTransformerImpl : public torch::nn::Module {
 public:
  explicit SamTwoWayTransformerImpl(const SamConfig::MaskDecoder& config);

  /// tokens           float [B, P, N, C]
  /// image            float [B, 1, K, C]
  /// image_positions  float [1, 1, K, C]
  TwoWay forward(const torch::Tensor& tokens, torch::Tensor image, const torch::Tensor& image_positions);

 private:
  torch::nn::ModuleList layers_;
  SamAttention final_attn_token_to_image_;
  torch::nn::LayerNorm layer_norm_final_attn_;
};
TORCH_MODULE(SamTwoWayTransformer);

}  // namespace ddprun::models
