#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <utility>

#include "worker/sam/model/layers.h"

namespace ddprun::sam {

/// Attention with an inner size that may be smaller than the input's.
class SamAttentionImpl : public torch::nn::Module {
 public:
  SamAttentionImpl(const SamConfig::MaskDecoder& config, std::int64_t downsample_rate);

  /// If one of the two has P = 1, it serves all prompts of the other, without copies.
  ///
  /// query      float [B, P, N, C]
  /// key,value  float [B, P, K, C]
  /// returns    float [B, P, N, C]
  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value);

  /// For new weights: a query attends most to similar keys, as a point to the pixels around it.
  void attend_to_alike();

 private:
  std::int64_t heads_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, out_proj_;
};
TORCH_MODULE(SamAttention);

/// Tokens and image.
using TwoWay = std::pair<torch::Tensor, torch::Tensor>;

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

struct SamOutput {
  torch::Tensor masks;       ///< float [B, P, M, 4 grid, 4 grid], logits
  torch::Tensor iou_scores;  ///< float [B, P, M], predicted quality of each mask
};

/// Decodes image channels and prompts to masks.
class SamMaskDecoderImpl : public torch::nn::Module {
 public:
  explicit SamMaskDecoderImpl(const SamConfig::MaskDecoder& config);

  /// image            float [B, 1, grid * grid, hidden_size], with the dense prompt added
  /// image_positions  float [1, 1, grid * grid, hidden_size]
  /// prompts          float [B, P, N, hidden_size]; undefined: no prompts, P = 1
  /// multimask        true: M is num_multimask_outputs, ranked by their scores; false: M = 1, the mask for
  ///                  unambiguous prompts. Runs only the networks of the requested masks
  SamOutput forward(const torch::Tensor& image, const torch::Tensor& image_positions,
                    const torch::Tensor& prompts, bool multimask);

 private:
  torch::Tensor upscaled(const torch::Tensor& image);

  std::int64_t masks_;  ///< 1 + num_multimask_outputs
  torch::nn::Embedding iou_token_, mask_tokens_;
  SamTwoWayTransformer transformer_;
  torch::nn::ConvTranspose2d upscale_conv1_, upscale_conv2_;
  torch::nn::LayerNorm upscale_layer_norm_;
  torch::nn::ModuleList output_hypernetworks_mlps_;
  SamFeedForward iou_prediction_head_;
};
TORCH_MODULE(SamMaskDecoder);

}  // namespace ddprun::sam
