#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <memory>

#include "worker/sam/model/layers.h"

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

}  // namespace ddprun::sam
