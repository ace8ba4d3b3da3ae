#pragma once

#include <ATen/core/Tensor.h>

namespace ddprun::models {

/// Attention to the keys of a grid, with biases that each query has for the keys' rows and columns:
///
///   softmax(q k / sqrt(D) + by_row[key's row] + by_column[key's column]) v
///
/// The bias of all pairs is never there as a whole, nor are the probabilities: forward and backward go over
/// blocks of queries, and backward computes the probabilities of a block anew. The forward of a block is
/// scaled_dot_product_attention.
///
/// query      floating [B, Q, D]
/// key        [B, rows * columns, D], row by row
/// value      [B, rows * columns, D]
/// by_row     [B, Q, rows]
/// by_column  [B, Q, columns]
/// returns    [B, Q, D]
at::Tensor relative_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const at::Tensor& by_row, const at::Tensor& by_column);

}  // namespace ddprun::models
