#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <utility>

#include "worker/sam/model/vision_encoder.h"

namespace ddprun::sam {

/// Encodes positions as sines and cosines of fixed random frequencies (Tancik et al. 2020).
class SamPositionalEmbeddingImpl : public torch::nn::Module {
 public:
  explicit SamPositionalEmbeddingImpl(std::int64_t features);

  /// place    float [..., 2], x and y in [0, 1]
  /// returns  [..., 2 * features] of the frequencies' type, computed in float at least
  torch::Tensor forward(const torch::Tensor& place);

  /// Encodes the centres of a grid's cells, row by row: [1, 1, side * side, 2 * features].
  torch::Tensor of_grid(std::int64_t side);

 private:
  torch::Tensor positional_embedding_;  ///< [2, features]
};
TORCH_MODULE(SamPositionalEmbedding);

class SamMaskEmbeddingImpl;

/// What to segment; undefined tensors: no such prompts. Coordinates are pixels in the model's frame.
struct SamPrompts {
  torch::Tensor points = {};  ///< [B, P, N, 2], x and y
  /// [B, P, N]: 1 foreground, 0 background, -1 no point, -10 padding; undefined: all 1
  torch::Tensor labels = {};
  torch::Tensor boxes = {};  ///< [B, P, 4], top left and bottom right corner
  torch::Tensor masks = {};  ///< float [B, 1, 4 grid, 4 grid], logits
};

class SamPromptEncoderImpl : public torch::nn::Module {
 public:
  /// positions  shared with the image
  SamPromptEncoderImpl(const SamConfig::PromptEncoder& config, SamPositionalEmbedding positions);

  /// returns  float [B, P, N', hidden_size]: the points, plus a "no point" if there are no boxes, and two
  ///          corners of each box; undefined without points and boxes
  torch::Tensor sparse(const SamPrompts& prompts);

  /// returns  float [B, 1, grid * grid, hidden_size] for a mask; [1, 1, 1, hidden_size] without one
  torch::Tensor dense(const SamPrompts& prompts);

 private:
  torch::Tensor embed_points(torch::Tensor points, torch::Tensor labels, bool with_end);
  torch::Tensor embed_boxes(const torch::Tensor& boxes);
  torch::Tensor position(const torch::Tensor& pixels);
  torch::Tensor point_embedding(std::size_t i);

  std::int64_t image_size_;
  SamPositionalEmbedding shared_embedding_;
  std::shared_ptr<SamMaskEmbeddingImpl> mask_embed_;
  torch::nn::Embedding no_mask_embed_;
  torch::nn::ModuleList point_embed_;
  torch::nn::Embedding not_a_point_embed_;
};
TORCH_MODULE(SamPromptEncoder);

/// Tokens and image.
using TwoWay = std::pair<torch::Tensor, torch::Tensor>;

class SamAttentionImpl;

/// Tokens and image attend to each other, layer by layer.
class SamTwoWayTransformerImpl : public torch::nn::Module {
 public:
  explicit SamTwoWayTransformerImpl(const SamConfig::MaskDecoder& config);

  /// tokens           float [B, P, N, C]
  /// image            float [B, 1, K, C]
  /// image_positions  float [1, 1, K, C]
  TwoWay forward(const torch::Tensor& tokens, torch::Tensor image, const torch::Tensor& image_positions);

 private:
  torch::nn::ModuleList layers_;
  std::shared_ptr<SamAttentionImpl> final_attn_token_to_image_;
  torch::nn::LayerNorm layer_norm_final_attn_;
};
TORCH_MODULE(SamTwoWayTransformer);

struct SamOutput {
  torch::Tensor masks;       ///< float [B, P, M, 4 grid, 4 grid], logits
  torch::Tensor iou_scores;  ///< float [B, P, M], predicted quality of each mask
};

class SamMaskDecoderImpl;

/// Segment Anything (Kirillov et al. 2023). Parameters and buffers have the names of transformers' SamModel,
/// so weights can be exchanged. The position frequencies, which transformers lists under two names and
/// recently as a parameter, are one buffer, as in the authors' code.
class SamImpl : public torch::nn::Module {
 public:
  /// Draws new weights: the vision encoder's normal with config.initializer_range, its biases and positions
  /// 0; the frequencies normal with 1 and the rest by PyTorch's rules, as in the authors' code, except that
  /// attention between tokens and image begins with equal projections of queries and keys: a point attends to
  /// its surroundings.
  ///
  /// throws  std::invalid_argument if problem(config) is not empty
  explicit SamImpl(const SamConfig& config = {});

  const SamConfig& config() const { return config_; }

  /// image    float [B, 3, image_size, image_size]
  /// prompts  P per image
  /// returns  masks and scores for every prompt
  /// throws   std::invalid_argument naming a tensor of the wrong shape
  SamOutput forward(const torch::Tensor& image, const SamPrompts& prompts, bool multimask = true);

  /// The two halves of forward(), for several prompts about the same image.
  ///
  /// returns  float [B, output_channels, grid, grid], as transformers' get_image_embeddings()
  torch::Tensor image_embeddings(const torch::Tensor& image);
  SamOutput decode(const torch::Tensor& image_embeddings, const SamPrompts& prompts, bool multimask = true);

  /// Recomputes the image encoder's layers in backward instead of storing their intermediates.
  void set_gradient_checkpointing(bool on) { vision_encoder_->set_gradient_checkpointing(on); }

  /// Excludes parts from training. A frozen image encoder stores nothing for backward.
  void freeze_encoder();
  void freeze_prompt_encoder();

 private:
  void draw_weights();
  void check_prompts(const SamPrompts& prompts, std::int64_t images) const;

  SamConfig config_;
  SamPositionalEmbedding shared_image_embedding_;
  SamVisionEncoder vision_encoder_;
  SamPromptEncoder prompt_encoder_;
  std::shared_ptr<SamMaskDecoderImpl> mask_decoder_;
};
TORCH_MODULE(Sam);

}  // namespace ddprun::sam
