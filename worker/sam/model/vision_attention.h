#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "worker/sam/model/sam_config.h"

namespace ddprun::sam {

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

/// Attention of the image encoder: between all patches, or between those of one window; with relative
/// positions of rows and columns (Li et al. 2021, MViTv2).
///
///   logits = q k / sqrt(D) + q r_h(row - key's row) + q r_w(column - key's column)
///
/// Windows that cross the image's edge are padded with zeros before the layer that computes q, k and v, so
/// the padding's keys and values are that layer's biases. Only patches of the image have queries.
class VisionAttentionImpl : public torch::nn::Module {
 public:
  /// window  patches per side of a window; 0: the whole image
  VisionAttentionImpl(const SamConfig::Vision& config, std::int64_t window);

  /// x_BHWC   float [B, grid, grid, hidden_size]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x_BHWC);

 private:
  /// Windows along one axis: `count` of them from `begin` on, with `used` patches of the image in each.
  struct Band {
    std::int64_t begin, count, used;
  };
  std::vector<Band> bands(std::int64_t length) const;
  torch::Tensor padded_qkv(const torch::Tensor& x_BHWC);
  torch::Tensor attend(const torch::Tensor& qkv_BHWC, const Band& rows, const Band& columns);
  torch::Tensor relative_positions(const torch::Tensor& query_BHWD, const torch::Tensor& table);

  std::int64_t heads_, window_;
  torch::nn::Linear qkv_, proj_;
  /// [2 window - 1, D] by distance; undefined without relative positions
  torch::Tensor rel_pos_h_, rel_pos_w_;
};
TORCH_MODULE(VisionAttention);

}  // namespace ddprun::sam
