#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>

#include "worker/sam/model/sam_config.h"

// Shapes: B images, P prompts per image, N tokens, C channels, H rows and W columns (of
// patches, except for pictures and masks), E heads, D channels per head.

namespace ddprun::sam {

torch::Tensor activate(Activation activation, const torch::Tensor& x);

/// LayerNorm over the last dimension.
torch::nn::LayerNorm layer_norm(std::int64_t channels, double eps);

/// A linear layer, an activation function, a linear layer.
class SamMlpImpl : public torch::nn::Module {
 public:
  SamMlpImpl(std::int64_t channels, std::int64_t hidden, Activation activation);

  /// x        float [..., channels]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear lin1_, lin2_;
};
TORCH_MODULE(SamMlp);

/// Attention to the keys of a grid, with biases for the keys' rows and columns:
///
///   softmax(q k / sqrt(D) + by_row[key's row] + by_column[key's column]) v
///
/// Never stores the biases or probabilities of all pairs: forward and backward work on blocks of queries, and
/// backward recomputes a block's probabilities. A block's forward is scaled_dot_product_attention.
///
/// query      floating [B, Q, D]
/// key        [B, rows * columns, D], row by row
/// value      [B, rows * columns, D]
/// by_row     [B, Q, rows]
/// by_column  [B, Q, columns]
/// returns    [B, Q, D]
at::Tensor relative_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const at::Tensor& by_row, const at::Tensor& by_column);

class VisionAttentionImpl;

/// Cuts a picture into patches and embeds them.
class SamPatchEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit SamPatchEmbeddingsImpl(const SamConfig::Vision& config);

  /// image_BCHW  float [B, channels, size, size]
  /// returns     float [B, grid, grid, hidden_size]
  torch::Tensor forward(const torch::Tensor& image_BCHW);

 private:
  torch::nn::Conv2d projection_;
};
TORCH_MODULE(SamPatchEmbeddings);

/// A block of the image encoder's transformer: attention and an MLP, each with a norm before it and a
/// shortcut.
class SamVisionLayerImpl : public torch::nn::Module {
 public:
  SamVisionLayerImpl(const SamConfig::Vision& config, std::int64_t window);

  /// x_BHWC   float [B, grid, grid, hidden_size]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x_BHWC);

 private:
  torch::nn::LayerNorm layer_norm1_;
  std::shared_ptr<VisionAttentionImpl> attn_;
  torch::nn::LayerNorm layer_norm2_;
  SamMlp mlp_;
};
TORCH_MODULE(SamVisionLayer);

/// Two convolutions with norms, to the decoder's channels.
class SamVisionNeckImpl : public torch::nn::Module {
 public:
  explicit SamVisionNeckImpl(const SamConfig::Vision& config);

  /// x_BHWC   float [B, grid, grid, hidden_size]
  /// returns  float [B, grid, grid, output_channels]
  torch::Tensor forward(const torch::Tensor& x_BHWC);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::LayerNorm layer_norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::LayerNorm layer_norm2_;
};
TORCH_MODULE(SamVisionNeck);

/// SAM's image encoder, a vision transformer (Li et al. 2022, ViTDet).
class SamVisionEncoderImpl : public torch::nn::Module {
 public:
  explicit SamVisionEncoderImpl(const SamConfig::Vision& config);

  /// image_BCHW  float [B, channels, image_size, image_size]
  /// returns     float [B, grid, grid, output_channels]
  torch::Tensor forward(const torch::Tensor& image_BCHW);

  /// Makes the layers store nothing for backward and rerun there.
  void set_gradient_checkpointing(bool on) { checkpoints_gradients_ = on; }

 private:
  SamPatchEmbeddings patch_embed_;
  torch::Tensor pos_embed_;  ///< [1, grid, grid, hidden_size]; undefined without absolute positions
  torch::nn::ModuleList layers_;
  SamVisionNeck neck_;
  bool checkpoints_gradients_ = false;
};
TORCH_MODULE(SamVisionEncoder);

}  // namespace ddprun::sam
