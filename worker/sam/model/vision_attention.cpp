#include "worker/sam/model/vision_attention.h"

#include <torch/types.h>

#include "worker/sam/model/relative_attention.h"

namespace ddprun::models {

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
  const auto windows = images * rows.count * columns.count;
  // B windows of w x w, of which each head has its own: queries, keys and values.
  const auto parts_BwwD =
      qkv_BHWC.narrow(1, rows.begin, rows.count * window_)
          .narrow(2, columns.begin, columns.count * window_)
          .reshape({images, rows.count, window_, columns.count, window_, 3, heads_, depth})
          .permute({5, 0, 1, 3, 6, 2, 4, 7})
          .reshape({3, windows * heads_, window_, window_, depth})
          .unbind();
  const auto query = parts_BwwD[0].narrow(1, 0, rows.used).narrow(2, 0, columns.used);
  const auto query_BQD = query.flatten(1, 2), key_BKD = parts_BwwD[1].flatten(1, 2);
  const auto value_BKD = parts_BwwD[2].flatten(1, 2);
  torch::Tensor out_BQD;
  if (rel_pos_h_.defined()) {
    const auto by_row = relative_positions(query, rel_pos_h_);
    const auto by_column = relative_positions(query.transpose(1, 2), rel_pos_w_).transpose(1, 2);
    out_BQD =
        relative_attention(query_BQD, key_BKD, value_BKD, by_row.flatten(1, 2), by_column.flatten(1, 2));
  } else {
    out_BQD = torch::scaled_dot_product_attention(query_BQD.unsqueeze(1), key_BKD.unsqueeze(1),
                                                  value_BKD.unsqueeze(1))
                  .squeeze(1);
  }
  return out_BQD.view({images, rows.count, columns.count, heads_, rows.used, columns.used, depth})
      .permute({0, 1, 4, 2, 5, 3, 6})
      .reshape({images, rows.count * rows.used, columns.count * columns.used, channels});
}

/// For each query [B, H, W, D] its product with the table's entry for every row of a window: [B, H, W, w].
torch::Tensor VisionAttentionImpl::relative_positions(const torch::Tensor& query_BHWD,
                                                      const torch::Tensor& table) {
  const auto batches = query_BHWD.size(0), rows = query_BHWD.size(1), columns = query_BHWD.size(2);
  const auto depth = query_BHWD.size(3);
  const auto integers = torch::TensorOptions(torch::kInt64).device(table.device());
  const auto distance =
      torch::arange(rows, integers).unsqueeze(1) - torch::arange(window_, integers) + (window_ - 1);
  const auto table_HDw =
      table.index_select(0, distance.flatten()).view({rows, window_, depth}).transpose(1, 2);
  return torch::bmm(query_BHWD.transpose(0, 1).reshape({rows, batches * columns, depth}), table_HDw)
      .view({rows, batches, columns, window_})
      .transpose(0, 1);
}

}  // namespace ddprun::models
