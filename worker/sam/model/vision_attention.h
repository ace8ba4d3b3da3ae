#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "worker/sam/model/sam_config.h"

namespace ddprun::models {

/// Attention of the image encoder: between all patches, or between those of one window; with relative
/// positions of rows and columns (Li et al. 2021, MViTv2).
///
///   logits = q k / sqrt(D) + q r_h(row - key's row) + q r_w(column - key's column)
///
/// Windows that reach over the image's edge are padded with zeros before the layer that makes q, k and v, so
/// that their keys and values are its biases. Queries are made for patches of the image alone.
class VisionAttentionImpl : public torch::nn::Module {
 public:
  /// window  patches of a window's side; 0: all of the image is one
  VisionAttentionImpl(const SamConfig::Vision& config, std::int64_t window);

  /// x_BHWC   float [B, grid, grid, hidden_size]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x_BHWC);

 private:
  /// Windows of one size along one axis: `count` from `begin` on, of which `used` patches are the image's.
  struct Band {
    std::int64_t begin, count, used;
  };
  std::vector<Band> bands(std::int64_t length) const;
  torch::Tensor padded_qkv(const torch::Tensor& x_BHWC);
  torch::Tensor attend(const torch::Tensor& qkv_BHWC, const Band& rows, const Band& columns);
  torch::Tensor relative_positions(const torch::Tensor& query_BHWD, const torch::Tensor& table);

  std::int64_t heads_, window_;
  torch::nn::Linear qkv_, proj_;
  torch::Tensor rel_pos_h_,
      rel_pos_w_;  ///< [2 window - 1, D] by distance; undefined without relative positions
};
TORCH_MODULE(VisionAttention);

}  // namespace ddprun::models
