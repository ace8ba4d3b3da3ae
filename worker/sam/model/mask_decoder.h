#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "worker/sam/model/layers.h"
#include "worker/sam/model/two_way_transformer.h"

namespace ddprun::models {

struct SamOutput {
  torch::Tensor masks;       ///< float [B, P, M, 4 grid, 4 grid], logits
  torch::Tensor iou_scores;  ///< float [B, P, M], how well the model thinks that each mask fits
};

/// From the image's channels and the prompts to masks.
class SamMaskDecoderImpl : public torch::nn::Module {
 public:
  explicit SamMaskDecoderImpl(const SamConfig::MaskDecoder& config);

  /// image            float [B, 1, grid * grid, hidden_size], with the dense prompt added
  /// image_positions  float [1, 1, grid * grid, hidden_size]
  /// prompts          float [B, P, N, hidden_size]; undefined: no prompts, and P is 1
  /// multimask        M is num_multimask_outputs, of which the scores say the best; else 1, the mask for
  /// prompts that
  ///                  leave no doubt. The nets of masks that are not asked for are not run
  SamOutput forward(const torch::Tensor& image, const torch::Tensor& image_positions,
                    const torch::Tensor& prompts, bool multimask);

 private:
  torch::Tensor upscaled(const torch::Tensor& image);

  std::int64_t masks_;  ///< of all kinds: 1 + num_multimask_outputs
  torch::nn::Embedding iou_token_, mask_tokens_;
  SamTwoWayTransformer transformer_;
  torch::nn::ConvTranspose2d upscale_conv1_, upscale_conv2_;
  torch::nn::LayerNorm upscale_layer_norm_;
  torch::nn::ModuleList output_hypernetworks_mlps_;
  SamFeedForward iou_prediction_head_;
};
TORCH_MODULE(SamMaskDecoder);

}  // namespace ddprun::models
