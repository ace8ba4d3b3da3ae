#include "worker/models/sam/vision_attention.h"

#include <torch/types.h>

#include <cmath>

namespace ddprun::models {
namespace {

/// Numbers of a query for the rows, or the columns, of a window: some more, so that the channels of queries
/// come to a multiple of 8, which fused kernels in half precision want.
std::int64_t slots_for(std::int64_t window) { return (window + 3) / 4 * 4; }

/// For every key of a window, row by row, 1 at its row and at its column: [window * window, 2 * slots].
torch::Tensor places(std::int64_t window, const torch::TensorOptions& options) {
  const auto slots = slots_for(window);
  const auto one = torch::eye(window, slots, options);
  const auto rows = one.unsqueeze(1).expand({window, window, slots});
  const auto columns = one.unsqueeze(0).expand({window, window, slots});
  return torch::cat({rows, columns}, -1).view({window * window, 2 * slots});
}

}  // namespace

VisionAttentionImpl::VisionAttentionImpl(const SamConfig::Vision& config, std::int64_t window)
    : heads_(config.num_attention_heads),
      window_(window > 0 ? window : config.grid()),
      qkv_(torch::nn::LinearOptions(config.hidden_size, 3 * config.hidden_size).bias(config.qkv_bias)),
      proj_(config.hidden_size, config.hidden_size) {
  register_module("qkv", qkv_);
  register_module("proj", proj_);
  if (!config.use_rel_pos) return;
  const std::int64_t distances = 2 * window_ - 1, depth = config.hidden_size / heads_;
  rel_pos_h_ = register_parameter("rel_pos_h", torch::zeros({distances, depth}));
  rel_pos_w_ = register_parameter("rel_pos_w", torch::zeros({distances, depth}));
}

torch::Tensor VisionAttentionImpl::forward(const torch::Tensor& x_BHWC) {
  const auto qkv_BHWC = padded_qkv(x_BHWC);
  std::vector<torch::Tensor> stripes;
  for (const auto& rows : bands(x_BHWC.size(1))) {
    std::vector<torch::Tensor> blocks;
    for (const auto& columns : bands(x_BHWC.size(2))) blocks.push_back(attend(qkv_BHWC, rows, columns));
    stripes.push_back(blocks.size() == 1 ? blocks.front() : torch::cat(blocks, 2));
  }
  return proj_(stripes.size() == 1 ? stripes.front() : torch::cat(stripes, 1));
}

std::vector<VisionAttentionImpl::Band> VisionAttentionImpl::bands(std::int64_t length) const {
  const auto whole = length / window_, rest = length % window_;
  std::vector<Band> result;
  if (whole > 0) result.push_back({0, whole, window_});
  if (rest > 0) result.push_back({whole * window_, 1, rest});
  return result;
}

torch::Tensor VisionAttentionImpl::padded_qkv(const torch::Tensor& x_BHWC) {
  const auto padding = [&](std::int64_t length) { return (window_ - length % window_) % window_; };
  const auto below = padding(x_BHWC.size(1)), right = padding(x_BHWC.size(2));
  if (below == 0 && right == 0) return qkv_(x_BHWC);
  auto qkv_BHWC = torch::constant_pad_nd(torch::linear(x_BHWC, qkv_->weight), {0, 0, 0, right, 0, below});
  return qkv_->bias.defined() ? qkv_BHWC.add_(qkv_->bias) : qkv_BHWC;
}

torch::Tensor VisionAttentionImpl::attend(const torch::Tensor& qkv_BHWC, const Band& rows,
                                          const Band& columns) {
  const auto images = qkv_BHWC.size(0), channels = qkv_BHWC.size(3) / 3, depth = channels / heads_;
  const auto windows = images * rows.count * columns.count, keys = window_ * window_;
  // N windows of w x w.
  const auto qkv_NwwC = qkv_BHWC.narrow(1, rows.begin, rows.count * window_)
                            .narrow(2, columns.begin, columns.count * window_)
                            .reshape({images, rows.count, window_, columns.count, window_, 3 * channels})
                            .transpose(2, 3)
                            .reshape({windows, window_, window_, 3, heads_, depth});
  auto query_NHWED = qkv_NwwC.select(3, 0).narrow(1, 0, rows.used).narrow(2, 0, columns.used);
  auto key_NKED = qkv_NwwC.select(3, 1).reshape({windows, keys, heads_, depth});
  auto value_NKED = qkv_NwwC.select(3, 2).reshape({windows, keys, heads_, depth});
  if (rel_pos_h_.defined()) {
    // The bias of a query and a key is the sum of two numbers that the query has for the key's row and for
    // its column: with those as further channels of the query, and 1 at the key's row and column as its, it
    // is part of their product, and no tensor of all pairs is made for it.
    const auto options = key_NKED.options();
    const auto by_row = relative_positions(query_NHWED, rel_pos_h_);
    const auto by_column = relative_positions(query_NHWED.transpose(1, 2), rel_pos_w_).transpose(1, 2);
    const auto place = places(window_, options).view({1, keys, 1, -1});
    query_NHWED = torch::cat({query_NHWED, by_row.to(options), by_column.to(options)}, -1);
    key_NKED = torch::cat({key_NKED, place.expand({windows, keys, heads_, -1})}, -1);
    value_NKED = torch::constant_pad_nd(value_NKED, {0, place.size(3)});  // the fused kernels want one size
  }
  const auto query_NQED =
      query_NHWED.reshape({windows, rows.used * columns.used, heads_, query_NHWED.size(4)});
  const auto out_NEQD = torch::scaled_dot_product_attention(
      query_NQED.transpose(1, 2), key_NKED.transpose(1, 2), value_NKED.transpose(1, 2), /*attn_mask=*/{},
      /*dropout_p=*/0, /*is_causal=*/false, /*scale=*/1 / std::sqrt(static_cast<double>(depth)));
  return out_NEQD.narrow(3, 0, depth)
      .transpose(1, 2)
      .reshape({images, rows.count, columns.count, rows.used, columns.used, channels})
      .transpose(2, 3)
      .reshape({images, rows.count * rows.used, columns.count * columns.used, channels});
}

/// For each query its product with the table's entry for every row of a window: [N, H, W, E, slots]. Times
/// sqrt(D), which the attention divides by.
torch::Tensor VisionAttentionImpl::relative_positions(const torch::Tensor& query_NHWED,
                                                      const torch::Tensor& table) {
  const auto windows = query_NHWED.size(0), rows = query_NHWED.size(1), columns = query_NHWED.size(2);
  const auto depth = query_NHWED.size(4), slots = slots_for(window_);
  const auto integers = torch::TensorOptions(torch::kInt64).device(table.device());
  const auto distance =
      torch::arange(rows, integers).unsqueeze(1) - torch::arange(window_, integers) + (window_ - 1);
  const auto table_HwD = (table * std::sqrt(static_cast<double>(depth)))
                             .index_select(0, distance.flatten())
                             .view({rows, window_, depth});
  const auto table_HDs = torch::constant_pad_nd(table_HwD, {0, 0, 0, slots - window_}).transpose(1, 2);
  return torch::bmm(query_NHWED.transpose(0, 1).reshape({rows, windows * columns * heads_, depth}), table_HDs)
      .view({rows, windows, columns, heads_, slots})
      .transpose(0, 1);
}

}  // namespace ddprun::models
