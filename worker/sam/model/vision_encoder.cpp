#include "worker/sam/model/vision_encoder.h"

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/models/recompute.h"

namespace ddprun::sam {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Pairs of query and key per block. On the CPU, a block's logits should fit into the caches.
constexpr std::int64_t kMostPairsOfThread = 1 << 19, kMostPairsOfDevice = 1 << 26;

struct Inputs {
  at::Tensor query, key, value, by_row, by_column;
};

/// Some queries of some batches.
struct Block {
  std::int64_t batch, batches, query, queries;

  at::Tensor of_batches(const at::Tensor& whole) const { return whole.narrow(0, batch, batches); }
  at::Tensor of_queries(const at::Tensor& whole) const { return of_batches(whole).narrow(1, query, queries); }
};

/// Blocks hold whole batches if these have few enough queries.
std::vector<Block> blocks_of(const at::Tensor& query, const at::Tensor& key) {
  const auto batches = query.size(0), queries = query.size(1), keys = key.size(1);
  if (query.numel() == 0) return {};
  const auto most = query.is_cpu() ? kMostPairsOfThread * at::get_num_threads() : kMostPairsOfDevice;
  const auto at_once = std::clamp<std::int64_t>(most / keys, 1, queries);
  const auto together = std::clamp<std::int64_t>(most / (keys * queries), 1, batches);
  std::vector<Block> blocks;
  for (std::int64_t b = 0; b < batches; b += together)
    for (std::int64_t q = 0; q < queries; q += at_once)
      blocks.push_back({b, std::min(together, batches - b), q, std::min(at_once, queries - q)});
  return blocks;
}

/// [batches, queries, keys]
at::Tensor bias_of(const Block& block, const Inputs& in, at::ScalarType type) {
  const auto by_row = block.of_queries(in.by_row).to(type),
             by_column = block.of_queries(in.by_column).to(type);
  return (by_row.unsqueeze(3) + by_column.unsqueeze(2)).flatten(2);
}

/// float for half precision
at::ScalarType wide_type(const at::Tensor& query) { return at::toOpMathType(query.scalar_type()); }

double scale_of(const at::Tensor& query) { return 1 / std::sqrt(static_cast<double>(query.size(2))); }

struct RelativeAttention : torch::autograd::Function<RelativeAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const at::Tensor& by_row, const at::Tensor& by_column) {
    context->save_for_backward({query, key, value, by_row, by_column});
    const Inputs in = {query, key, value, by_row, by_column};
    const auto bias_type = query.is_cpu() ? wide_type(query) : query.scalar_type();  // as its kernels require
    auto out = torch::empty_like(query);
    for (const auto& block : blocks_of(query, key))
      block.of_queries(out).copy_(attend(block.of_queries(query), block.of_batches(key),
                                         block.of_batches(value), bias_of(block, in, bias_type)));
    return out;
  }

  static at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& bias) {
    return torch::scaled_dot_product_attention(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1),
                                               bias.unsqueeze(1))
        .squeeze(1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Inputs in = {saved[0], saved[1], saved[2], saved[3], saved[4]};
    const auto wide = wide_type(in.query);  // for sums over blocks
    Inputs found = {torch::empty_like(in.query), torch::zeros_like(in.key, wide),
                    torch::zeros_like(in.value, wide), torch::empty_like(in.by_row),
                    torch::empty_like(in.by_column)};
    const auto add = in.query.is_cpu() ? add_gradients : add_gradients_of_kernels;
    for (const auto& block : blocks_of(in.query, in.key)) add(block, in, gradients[0], found);
    return {found.query, found.key.to(in.key.scalar_type()), found.value.to(in.value.scalar_type()),
            found.by_row, found.by_column};
  }

  /// With the GPU's kernels: forward once more, then backward; these keep no logits.
  static void add_gradients_of_kernels(const Block& block, const Inputs& in, const at::Tensor& of_out,
                                       Inputs& found) {
    const torch::AutoGradMode with_grad(true);
    variable_list own = {block.of_queries(in.query), block.of_batches(in.key), block.of_batches(in.value),
                         block.of_queries(in.by_row), block.of_queries(in.by_column)};
    for (auto& tensor : own) tensor = tensor.detach().requires_grad_();
    const Block whole = {0, block.batches, 0, block.queries};
    const auto bias = bias_of(whole, {own[0], own[1], own[2], own[3], own[4]}, in.query.scalar_type());
    const auto gradients = torch::autograd::grad({attend(own[0], own[1], own[2], bias)}, own,
                                                 {block.of_queries(of_out).contiguous()});
    block.of_queries(found.query).copy_(gradients[0]);
    block.of_batches(found.key).add_(gradients[1]);
    block.of_batches(found.value).add_(gradients[2]);
    block.of_queries(found.by_row).copy_(gradients[3]);
    block.of_queries(found.by_column).copy_(gradients[4]);
  }

  /// Computes logits and softmax in at least single precision, as forward's kernels do.
  static void add_gradients(const Block& block, const Inputs& in, const at::Tensor& of_out, Inputs& found) {
    const auto query = block.of_queries(in.query), key = block.of_batches(in.key);
    const auto gradient = block.of_queries(of_out);
    const auto type = query.scalar_type(), wide = wide_type(query);
    const auto scale = scale_of(query);
    const auto logits =
        bias_of(block, in, wide).baddbmm_(query.to(wide), key.to(wide).transpose(1, 2), 1, scale);
    const auto chances = logits.softmax(2, wide);
    block.of_batches(found.value).add_(chances.to(type).transpose(1, 2).bmm(gradient));
    const auto of_chances = gradient.bmm(block.of_batches(in.value).transpose(1, 2)).to(wide);
    const auto of_logits = at::_softmax_backward_data(of_chances, chances, 2, wide);
    const auto by_place = of_logits.unflatten(2, {in.by_row.size(2), in.by_column.size(2)});
    block.of_queries(found.by_row).copy_(by_place.sum(3));
    block.of_queries(found.by_column).copy_(by_place.sum(2));
    const auto narrow = of_logits.to(type);
    block.of_queries(found.query).copy_(narrow.bmm(key).mul_(scale));
    block.of_batches(found.key).add_(narrow.transpose(1, 2).bmm(query), scale);
  }
};

torch::nn::Conv2d without_bias(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2).bias(false));
}

/// The layer's window; 0: global attention.
std::int64_t window_of(const SamConfig::Vision& config, std::int64_t layer) {
  const auto& global = config.global_attn_indexes;
  return std::ranges::find(global, layer) == global.end() ? config.window_size : 0;
}

}  // namespace

torch::Tensor activate(Activation activation, const torch::Tensor& x) {
  return activation == Activation::kGelu ? torch::gelu(x) : torch::relu(x);
}

torch::nn::LayerNorm layer_norm(std::int64_t channels, double eps) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({channels}).eps(eps));
}

SamMlpImpl::SamMlpImpl(std::int64_t channels, std::int64_t hidden, Activation activation)
    : activation_(activation),
      lin1_(register_module("lin1", torch::nn::Linear(channels, hidden))),
      lin2_(register_module("lin2", torch::nn::Linear(hidden, channels))) {}

torch::Tensor SamMlpImpl::forward(const torch::Tensor& x) { return lin2_(activate(activation_, lin1_(x))); }

at::Tensor relative_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const at::Tensor& by_row, const at::Tensor& by_column) {
  return RelativeAttention::apply(query, key, value, by_row, by_column);
}

/// Attention of the image encoder: between all patches, or between those of one window; with relative
/// positions of rows and columns (Li et al. 2021, MViTv2).
///
///   logits = q k / sqrt(D) + q r_h(row - key's row) + q r_w(column - key's column)
///
/// Windows that cross the image's edge are padded with zeros before the layer that computes q, k and v, so
/// the padding's keys and values are that layer's biases. Only the image's own patches have queries.
class VisionAttentionImpl : public torch::nn::Module {
 public:
  /// window  patches per side of a window; 0: the whole image
  VisionAttentionImpl(const SamConfig::Vision& config, std::int64_t window)
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

  /// x_BHWC   float [B, grid, grid, hidden_size]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x_BHWC) {
    const auto qkv_BHWC = padded_qkv(x_BHWC);
    std::vector<torch::Tensor> stripes;
    for (const auto& rows : bands(x_BHWC.size(1))) {
      std::vector<torch::Tensor> blocks;
      for (const auto& columns : bands(x_BHWC.size(2))) blocks.push_back(attend(qkv_BHWC, rows, columns));
      stripes.push_back(blocks.size() == 1 ? blocks.front() : torch::cat(blocks, 2));
    }
    return proj_(stripes.size() == 1 ? stripes.front() : torch::cat(stripes, 1));
  }

 private:
  /// Windows along one axis: `count` of them starting at `begin`, each with `used` patches of the image.
  struct Band {
    std::int64_t begin, count, used;
  };

  std::vector<Band> bands(std::int64_t length) const {
    const auto whole = length / window_, rest = length % window_;
    std::vector<Band> result;
    if (whole > 0) result.push_back({0, whole, window_});
    if (rest > 0) result.push_back({whole * window_, 1, rest});
    return result;
  }

  torch::Tensor padded_qkv(const torch::Tensor& x_BHWC) {
    const auto padding = [&](std::int64_t length) { return (window_ - length % window_) % window_; };
    const auto below = padding(x_BHWC.size(1)), right = padding(x_BHWC.size(2));
    if (below == 0 && right == 0) return qkv_(x_BHWC);
    auto qkv_BHWC = torch::constant_pad_nd(torch::linear(x_BHWC, qkv_->weight), {0, 0, 0, right, 0, below});
    return qkv_->bias.defined() ? qkv_BHWC.add_(qkv_->bias) : qkv_BHWC;
  }

  torch::Tensor attend(const torch::Tensor& qkv_BHWC, const Band& rows, const Band& columns) {
    const auto images = qkv_BHWC.size(0), channels = qkv_BHWC.size(3) / 3, depth = channels / heads_;
    const auto windows = images * rows.count * columns.count;
    // Queries, keys and values of B windows of w x w, separately for each head.
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

  /// Each query's product with the table's entry for every row of a window: [B, H, W, D] to [B, H, W, w].
  torch::Tensor relative_positions(const torch::Tensor& query_BHWD, const torch::Tensor& table) {
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

  std::int64_t heads_, window_;
  torch::nn::Linear qkv_, proj_;
  /// [2 window - 1, D] by distance; undefined without relative positions
  torch::Tensor rel_pos_h_, rel_pos_w_;
};

SamPatchEmbeddingsImpl::SamPatchEmbeddingsImpl(const SamConfig::Vision& config)
    : projection_(torch::nn::Conv2dOptions(config.num_channels, config.hidden_size, config.patch_size)
                      .stride(config.patch_size)) {
  register_module("projection", projection_);
}

torch::Tensor SamPatchEmbeddingsImpl::forward(const torch::Tensor& image_BCHW) {
  // A matrix product, because a convolution's [B, C, H, W] would have to be permuted to [B, H, W, C].
  const auto channels = image_BCHW.size(1), side = projection_->weight.size(3),
             grid = image_BCHW.size(2) / side;
  const auto patches = image_BCHW.reshape({image_BCHW.size(0), channels, grid, side, grid, side})
                           .permute({0, 2, 4, 1, 3, 5})
                           .reshape({image_BCHW.size(0), grid, grid, channels * side * side});
  return torch::linear(patches, projection_->weight.flatten(1), projection_->bias);
}

SamVisionLayerImpl::SamVisionLayerImpl(const SamConfig::Vision& config, std::int64_t window)
    : layer_norm1_(register_module("layer_norm1", layer_norm(config.hidden_size, config.layer_norm_eps))),
      attn_(register_module("attn", std::make_shared<VisionAttentionImpl>(config, window))),
      layer_norm2_(register_module("layer_norm2", layer_norm(config.hidden_size, config.layer_norm_eps))),
      mlp_(register_module("mlp", SamMlp(config.hidden_size, config.mlp_dim, config.hidden_act))) {}

torch::Tensor SamVisionLayerImpl::forward(const torch::Tensor& x_BHWC) {
  const auto y_BHWC = x_BHWC + attn_->forward(layer_norm1_(x_BHWC));
  return y_BHWC + mlp_(layer_norm2_(y_BHWC));
}

SamVisionNeckImpl::SamVisionNeckImpl(const SamConfig::Vision& config)
    : conv1_(register_module("conv1", without_bias(config.hidden_size, config.output_channels, 1))),
      layer_norm1_(register_module("layer_norm1", layer_norm(config.output_channels, 1e-6))),
      conv2_(register_module("conv2", without_bias(config.output_channels, config.output_channels, 3))),
      layer_norm2_(register_module("layer_norm2", layer_norm(config.output_channels, 1e-6))) {}

torch::Tensor SamVisionNeckImpl::forward(const torch::Tensor& x_BHWC) {
  const auto y_BHWC = layer_norm1_(torch::linear(x_BHWC, conv1_->weight.flatten(1)));
  return layer_norm2_(conv2_(y_BHWC.permute({0, 3, 1, 2})).permute({0, 2, 3, 1}));
}

SamVisionEncoderImpl::SamVisionEncoderImpl(const SamConfig::Vision& config)
    : patch_embed_(register_module("patch_embed", SamPatchEmbeddings(config))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      neck_(register_module("neck", SamVisionNeck(config))) {
  if (config.use_abs_pos)
    pos_embed_ =
        register_parameter("pos_embed", torch::zeros({1, config.grid(), config.grid(), config.hidden_size}));
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(SamVisionLayer(config, window_of(config, i)));
}

torch::Tensor SamVisionEncoderImpl::forward(const torch::Tensor& image_BCHW) {
  auto x_BHWC = patch_embed_(image_BCHW);
  if (pos_embed_.defined()) x_BHWC = x_BHWC + pos_embed_;
  for (const auto& module : *layers_) {
    auto* layer = module->as<SamVisionLayer>();
    x_BHWC = checkpoints_gradients_
                 ? models::recomputed([layer](const torch::Tensor& x) { return layer->forward(x); }, x_BHWC,
                                      layer->parameters())
                 : layer->forward(x_BHWC);
  }
  return neck_(x_BHWC);
}

}  // namespace ddprun::sam
