#include "worker/sam/model/sam.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace ddprun::sam {
namespace {

constexpr int kNoPoint = -1;

torch::nn::Conv2d halving(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 2).stride(2));
}

torch::Tensor as_float(const torch::Tensor& x) { return x.is_floating_point() ? x : x.to(torch::kFloat); }

// For the layers; attention_downsample_rate applies only to the last attention, as in transformers.
constexpr std::int64_t kLayersDownsampleRate = 2;

torch::nn::ConvTranspose2d doubling(std::int64_t in, std::int64_t out) {
  return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2));
}

/// A transposed convolution with kernel and stride 2 as a matrix product. The four pixels that each pixel
/// becomes stay side by side, [..., 4, channels] in the kernel's order; forward() moves them into place once
/// a single channel is left.
torch::Tensor four_pixels(const torch::Tensor& x, const torch::nn::ConvTranspose2d& convolution) {
  const auto weight = convolution->weight.permute({2, 3, 1, 0}).flatten(0, 2);
  return torch::linear(x, weight, convolution->bias.repeat({4})).unflatten(-1, {4, -1});
}

const SamConfig& checked(const SamConfig& config) {
  if (const auto line = problem(config); !line.empty()) throw std::invalid_argument("SamConfig: " + line);
  return config;
}

/// expected  sizes; -1 is any
void check_shape(const char* name, const torch::Tensor& tensor, at::IntArrayRef expected) {
  bool fits = tensor.dim() == static_cast<std::int64_t>(expected.size());
  for (std::size_t i = 0; fits && i < expected.size(); ++i)
    fits = expected[i] == -1 || tensor.size(static_cast<std::int64_t>(i)) == expected[i];
  if (fits) return;
  throw std::invalid_argument(
      c10::str("Sam: expected ", name, " of shape ", expected, " (-1: any), got ", tensor.sizes()));
}

template <typename Layer>
bool draw(const torch::nn::Module& module, double range) {
  const auto* layer = module.as<Layer>();
  if (layer == nullptr) return false;
  torch::nn::init::normal_(layer->weight, 0, range);
  if constexpr (requires { layer->bias; })
    if (layer->bias.defined()) torch::nn::init::zeros_(layer->bias);
  return true;
}

void freeze(const torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.requires_grad_(false);
}

}  // namespace

SamPositionalEmbeddingImpl::SamPositionalEmbeddingImpl(std::int64_t features)
    : positional_embedding_(register_buffer("positional_embedding", torch::randn({2, features}))) {}

torch::Tensor SamPositionalEmbeddingImpl::forward(const torch::Tensor& place) {
  // Not a matrix product, which autocast would compute in half precision: the angles are large.
  const auto type = positional_embedding_.scalar_type();
  const auto wide = type == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto frequency = positional_embedding_.to(wide);
  const auto centred = (2 * place - 1).to(wide);
  const auto angle = 2 * std::numbers::pi *
                     (centred.narrow(-1, 0, 1) * frequency[0] + centred.narrow(-1, 1, 1) * frequency[1]);
  return torch::cat({torch::sin(angle), torch::cos(angle)}, -1).to(type);
}

torch::Tensor SamPositionalEmbeddingImpl::of_grid(std::int64_t side) {
  const auto type = positional_embedding_.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto options = torch::TensorOptions(type).device(positional_embedding_.device());
  const auto middle = (torch::arange(side, options) + 0.5) / side;
  const auto place =
      torch::stack({middle.unsqueeze(0).expand({side, side}), middle.unsqueeze(1).expand({side, side})}, -1);
  return forward(place.view({1, 1, side * side, 2}));
}

/// Encodes a mask to channels for every patch.
class SamMaskEmbeddingImpl : public torch::nn::Module {
 public:
  explicit SamMaskEmbeddingImpl(const SamConfig::PromptEncoder& config)
      : activation_(config.hidden_act),
        conv1_(register_module("conv1", halving(1, config.mask_input_channels / 4))),
        conv2_(register_module("conv2", halving(config.mask_input_channels / 4, config.mask_input_channels))),
        conv3_(register_module("conv3", torch::nn::Conv2d(torch::nn::Conv2dOptions(config.mask_input_channels,
                                                                                   config.hidden_size, 1)))),
        layer_norm1_(register_module("layer_norm1",
                                     layer_norm(config.mask_input_channels / 4, config.layer_norm_eps))),
        layer_norm2_(
            register_module("layer_norm2", layer_norm(config.mask_input_channels, config.layer_norm_eps))) {}

  /// mask_B1HW  float [B, 1, 4 grid, 4 grid]
  /// returns    float [B, grid, grid, hidden_size]
  torch::Tensor forward(const torch::Tensor& mask_B1HW) {
    const auto half_BHWC = activate(activation_, layer_norm1_(conv1_(mask_B1HW).permute({0, 2, 3, 1})));
    const auto quarter_BCHW = conv2_(half_BHWC.permute({0, 3, 1, 2}));
    const auto quarter_BHWC = activate(activation_, layer_norm2_(quarter_BCHW.permute({0, 2, 3, 1})));
    return torch::linear(quarter_BHWC, conv3_->weight.flatten(1), conv3_->bias);
  }

 private:
  Activation activation_;
  torch::nn::Conv2d conv1_, conv2_, conv3_;
  torch::nn::LayerNorm layer_norm1_, layer_norm2_;
};

SamPromptEncoderImpl::SamPromptEncoderImpl(const SamConfig::PromptEncoder& config,
                                           SamPositionalEmbedding positions)
    : image_size_(config.image_size),
      shared_embedding_(register_module("shared_embedding", std::move(positions))),
      mask_embed_(register_module("mask_embed", std::make_shared<SamMaskEmbeddingImpl>(config))),
      no_mask_embed_(register_module("no_mask_embed", torch::nn::Embedding(1, config.hidden_size))),
      point_embed_(register_module("point_embed", torch::nn::ModuleList())),
      not_a_point_embed_(register_module("not_a_point_embed", torch::nn::Embedding(1, config.hidden_size))) {
  for (std::int64_t i = 0; i < config.num_point_embeddings; ++i)
    point_embed_->push_back(torch::nn::Embedding(1, config.hidden_size));
}

torch::Tensor SamPromptEncoderImpl::sparse(const SamPrompts& prompts) {
  torch::Tensor points, boxes;
  if (prompts.points.defined())
    points = embed_points(prompts.points, prompts.labels, !prompts.boxes.defined());
  if (prompts.boxes.defined()) boxes = embed_boxes(prompts.boxes);
  if (points.defined() && boxes.defined()) return torch::cat({points, boxes}, 2);
  return points.defined() ? points : boxes;
}

torch::Tensor SamPromptEncoderImpl::dense(const SamPrompts& prompts) {
  if (!prompts.masks.defined()) return no_mask_embed_->weight.view({1, 1, 1, -1});
  return mask_embed_->forward(prompts.masks).flatten(1, 2).unsqueeze(1);
}

torch::Tensor SamPromptEncoderImpl::position(const torch::Tensor& pixels) {
  return shared_embedding_((as_float(pixels) + 0.5) / static_cast<double>(image_size_));
}

torch::Tensor SamPromptEncoderImpl::point_embedding(std::size_t i) {
  return point_embed_[i]->as<torch::nn::Embedding>()->weight;
}

torch::Tensor SamPromptEncoderImpl::embed_points(torch::Tensor points, torch::Tensor labels, bool with_end) {
  if (!labels.defined()) labels = torch::ones_like(points.select(3, 0), torch::kInt64);
  if (with_end) {
    const auto size = points.sizes();
    points = torch::cat({points, points.new_zeros({size[0], size[1], 1, 2})}, 2);
    labels = torch::cat({labels, labels.new_full({size[0], size[1], 1}, kNoPoint)}, 2);
  }
  const auto is = [label = labels.unsqueeze(-1)](int kind) { return label == kind; };
  auto embedding = torch::where(is(kNoPoint), not_a_point_embed_->weight, position(points));
  embedding = embedding.masked_fill(is(kPaddingPoint), 0);
  for (const int kind : {0, 1})
    embedding =
        embedding + is(kind).to(embedding.scalar_type()) * point_embedding(static_cast<std::size_t>(kind));
  return embedding;
}

torch::Tensor SamPromptEncoderImpl::embed_boxes(const torch::Tensor& boxes) {
  const auto corners = boxes.reshape({boxes.size(0), boxes.size(1), 2, 2});
  return position(corners) + torch::cat({point_embedding(2), point_embedding(3)});
}

/// Attention with an inner size that may be smaller than the input's.
class SamAttentionImpl : public torch::nn::Module {
 public:
  SamAttentionImpl(const SamConfig::MaskDecoder& config, std::int64_t downsample_rate)
      : heads_(config.num_attention_heads),
        q_proj_(register_linear("q_proj", config.hidden_size, config.hidden_size / downsample_rate)),
        k_proj_(register_linear("k_proj", config.hidden_size, config.hidden_size / downsample_rate)),
        v_proj_(register_linear("v_proj", config.hidden_size, config.hidden_size / downsample_rate)),
        out_proj_(register_linear("out_proj", config.hidden_size / downsample_rate, config.hidden_size)) {}

  /// If one of the two has P = 1, it serves all prompts of the other, without copies.
  ///
  /// query      float [B, P, N, C]
  /// key,value  float [B, P, K, C]
  /// returns    float [B, P, N, C]
  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value) {
    auto query_BPNC = q_proj_(query);
    const auto images = query.size(0), prompts = std::max(query.size(1), key.size(1)), tokens = query.size(2);
    if (query.size(1) < prompts) query_BPNC = query_BPNC.expand({-1, prompts, -1, -1});
    // If prompts have separate keys, treat them like images; otherwise, like tokens.
    const auto batch = images * key.size(1);
    const auto heads = [&](const torch::Tensor& x) {
      return x.reshape({batch, x.size(0) * x.size(1) * x.size(2) / batch, heads_, -1}).transpose(1, 2);
    };
    const auto out =
        torch::scaled_dot_product_attention(heads(query_BPNC), heads(k_proj_(key)), heads(v_proj_(value)));
    return out_proj_(out.transpose(1, 2).reshape({images, prompts, tokens, -1}));
  }

  /// For new weights: a query attends most to similar keys, as a point to the pixels around it.
  void attend_to_alike() {
    const torch::NoGradGuard no_grad;
    constexpr double kScale = 2;  // 1 attends to everything for hundreds of steps, 4 to almost nothing
    q_proj_->weight *= kScale;
    k_proj_->weight.copy_(q_proj_->weight);
    k_proj_->bias.copy_(q_proj_->bias);
  }

 private:
  torch::nn::Linear register_linear(const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, torch::nn::Linear(in, out));
  }

  std::int64_t heads_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, out_proj_;
};
TORCH_MODULE(SamAttention);

/// Tokens attend to each other and to the image, then the image to the tokens.
class SamTwoWayAttentionBlockImpl : public torch::nn::Module {
 public:
  /// first  the first layer: its tokens are their positions
  SamTwoWayAttentionBlockImpl(const SamConfig::MaskDecoder& config, bool first)
      : first_(first),
        self_attn_(register_module("self_attn", SamAttention(config, 1))),
        layer_norm1_(register_module("layer_norm1", layer_norm(config.hidden_size, config.layer_norm_eps))),
        cross_attn_token_to_image_(
            register_module("cross_attn_token_to_image", SamAttention(config, kLayersDownsampleRate))),
        layer_norm2_(register_module("layer_norm2", layer_norm(config.hidden_size, config.layer_norm_eps))),
        mlp_(register_module("mlp", SamMlp(config.hidden_size, config.mlp_dim, config.hidden_act))),
        layer_norm3_(register_module("layer_norm3", layer_norm(config.hidden_size, config.layer_norm_eps))),
        layer_norm4_(register_module("layer_norm4", layer_norm(config.hidden_size, config.layer_norm_eps))),
        cross_attn_image_to_token_(
            register_module("cross_attn_image_to_token", SamAttention(config, kLayersDownsampleRate))) {}

  /// token,token_positions  float [B, P, N, C]
  /// image                  float [B, P or 1, K, C]
  /// image_positions        float [1, 1, K, C]
  /// returns                the same shapes, with P
  TwoWay forward(const torch::Tensor& token, const torch::Tensor& image, const torch::Tensor& token_positions,
                 const torch::Tensor& image_positions) {
    torch::Tensor token_BPNC;
    if (first_) {
      token_BPNC = self_attn_(token, token, token);
    } else {
      const auto placed = token + token_positions;
      token_BPNC = token + self_attn_(placed, placed, token);
    }
    token_BPNC = layer_norm1_(token_BPNC);

    const auto placed_image = image + image_positions;
    token_BPNC = token_BPNC + cross_attn_token_to_image_(token_BPNC + token_positions, placed_image, image);
    token_BPNC = layer_norm2_(token_BPNC);
    token_BPNC = layer_norm3_(token_BPNC + mlp_(token_BPNC));

    const auto seen = cross_attn_image_to_token_(placed_image, token_BPNC + token_positions, token_BPNC);
    return {token_BPNC, layer_norm4_(image + seen)};
  }

 private:
  bool first_;
  SamAttention self_attn_;
  torch::nn::LayerNorm layer_norm1_;
  SamAttention cross_attn_token_to_image_;
  torch::nn::LayerNorm layer_norm2_;
  SamMlp mlp_;
  torch::nn::LayerNorm layer_norm3_, layer_norm4_;
  SamAttention cross_attn_image_to_token_;
};

SamTwoWayTransformerImpl::SamTwoWayTransformerImpl(const SamConfig::MaskDecoder& config)
    : final_attn_token_to_image_(
          std::make_shared<SamAttentionImpl>(config, config.attention_downsample_rate)),
      layer_norm_final_attn_(layer_norm(config.hidden_size, 1e-5)) {  // torch's default, as in transformers
  register_module("layers", layers_);
  register_module("final_attn_token_to_image", final_attn_token_to_image_);
  register_module("layer_norm_final_attn", layer_norm_final_attn_);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(std::make_shared<SamTwoWayAttentionBlockImpl>(config, i == 0));
}

TwoWay SamTwoWayTransformerImpl::forward(const torch::Tensor& tokens, torch::Tensor image,
                                         const torch::Tensor& image_positions) {
  auto token_BPNC = tokens;
  for (const auto& module : *layers_)
    std::tie(token_BPNC, image) =
        module->as<SamTwoWayAttentionBlockImpl>()->forward(token_BPNC, image, tokens, image_positions);
  const auto seen = final_attn_token_to_image_->forward(token_BPNC + tokens, image + image_positions, image);
  return {layer_norm_final_attn_(token_BPNC + seen), image};
}

/// Linear layers with ReLU between them.
class SamFeedForwardImpl : public torch::nn::Module {
 public:
  SamFeedForwardImpl(std::int64_t in, std::int64_t hidden, std::int64_t out, std::int64_t layers)
      : proj_in_(register_module("proj_in", torch::nn::Linear(in, hidden))),
        proj_out_(register_module("proj_out", torch::nn::Linear(hidden, out))),
        layers_(register_module("layers", torch::nn::ModuleList())) {
    for (std::int64_t i = 2; i < layers; ++i) layers_->push_back(torch::nn::Linear(hidden, hidden));
  }

  /// x        float [..., in]
  /// returns  float [..., out]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(proj_in_(x));
    for (const auto& layer : *layers_) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return proj_out_(x);
  }

 private:
  torch::nn::Linear proj_in_, proj_out_;
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(SamFeedForward);

/// Decodes image channels and prompts to masks.
class SamMaskDecoderImpl : public torch::nn::Module {
 public:
  explicit SamMaskDecoderImpl(const SamConfig::MaskDecoder& config)
      : masks_(1 + config.num_multimask_outputs),
        iou_token_(register_module("iou_token", torch::nn::Embedding(1, config.hidden_size))),
        mask_tokens_(register_module("mask_tokens", torch::nn::Embedding(masks_, config.hidden_size))),
        transformer_(register_module("transformer", SamTwoWayTransformer(config))),
        upscale_conv1_(
            register_module("upscale_conv1", doubling(config.hidden_size, config.hidden_size / 4))),
        upscale_conv2_(
            register_module("upscale_conv2", doubling(config.hidden_size / 4, config.hidden_size / 8))),
        upscale_layer_norm_(register_module("upscale_layer_norm", layer_norm(config.hidden_size / 4, 1e-6))),
        output_hypernetworks_mlps_(register_module("output_hypernetworks_mlps", torch::nn::ModuleList())),
        iou_prediction_head_(register_module(
            "iou_prediction_head",
            SamFeedForward(config.hidden_size, config.iou_head_hidden_dim, masks_, config.iou_head_depth))) {
    for (std::int64_t i = 0; i < masks_; ++i)
      output_hypernetworks_mlps_->push_back(
          SamFeedForward(config.hidden_size, config.hidden_size, config.hidden_size / 8, 3));
  }

  /// image            float [B, 1, grid * grid, hidden_size], with the dense prompt added
  /// image_positions  float [1, 1, grid * grid, hidden_size]
  /// prompts          float [B, P, N, hidden_size]; undefined: no prompts, P = 1
  /// multimask        true: M is num_multimask_outputs, ranked by their scores; false: M = 1, the mask for
  ///                  unambiguous prompts. Runs only the networks of the requested masks
  SamOutput forward(const torch::Tensor& image, const torch::Tensor& image_positions,
                    const torch::Tensor& prompts, bool multimask) {
    const auto images = image.size(0), prompts_each = prompts.defined() ? prompts.size(1) : 1;
    auto tokens = torch::cat({iou_token_->weight, mask_tokens_->weight})
                      .expand({images, prompts_each, 1 + masks_, image.size(3)});
    if (prompts.defined()) tokens = torch::cat({tokens, prompts.to(tokens.scalar_type())}, 2);
    const auto [tokens_BPNC, image_BPNC] = transformer_->forward(tokens, image, image_positions);

    const std::int64_t first = multimask ? 1 : 0, end = multimask ? masks_ : 1;
    std::vector<torch::Tensor> weights;
    for (auto i = first; i < end; ++i)
      weights.push_back(
          output_hypernetworks_mlps_[static_cast<std::size_t>(i)]->as<SamFeedForward>()->forward(
              tokens_BPNC.select(2, 1 + i)));
    const auto mask_BPM = torch::matmul(torch::stack(weights, 2), upscaled(image_BPNC).transpose(2, 3));
    const auto grid = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(image.size(2)))));
    // Rows of patches, their halves, the halves' halves; then columns.
    const auto masks = mask_BPM.view({images, prompts_each, end - first, grid, grid, 2, 2, 2, 2})
                           .permute({0, 1, 2, 3, 5, 7, 4, 6, 8})
                           .reshape({images, prompts_each, end - first, 4 * grid, 4 * grid});
    return {masks, iou_prediction_head_(tokens_BPNC.select(2, 0)).slice(2, first, end)};
  }

 private:
  /// returns  float [B, P, grid * grid * 16, hidden_size / 8]: every patch's pixels side by side
  torch::Tensor upscaled(const torch::Tensor& image) {
    const auto doubled = torch::gelu(upscale_layer_norm_(four_pixels(image, upscale_conv1_)));
    return torch::gelu(four_pixels(doubled, upscale_conv2_)).flatten(2, 4);
  }

  std::int64_t masks_;  ///< 1 + num_multimask_outputs
  torch::nn::Embedding iou_token_, mask_tokens_;
  SamTwoWayTransformer transformer_;
  torch::nn::ConvTranspose2d upscale_conv1_, upscale_conv2_;
  torch::nn::LayerNorm upscale_layer_norm_;
  torch::nn::ModuleList output_hypernetworks_mlps_;
  SamFeedForward iou_prediction_head_;
};

SamImpl::SamImpl(const SamConfig& config)
    : config_(checked(config)),
      shared_image_embedding_(
          register_module("shared_image_embedding", SamPositionalEmbedding(config.vision.num_pos_feats))),
      vision_encoder_(register_module("vision_encoder", SamVisionEncoder(config.vision))),
      prompt_encoder_(register_module("prompt_encoder",
                                      SamPromptEncoder(config.prompt_encoder, shared_image_embedding_))),
      mask_decoder_(
          register_module("mask_decoder", std::make_shared<SamMaskDecoderImpl>(config.mask_decoder))) {
  draw_weights();
}

void SamImpl::draw_weights() {
  using namespace torch::nn;
  for (const auto& module : vision_encoder_->modules()) {
    const auto range = config_.initializer_range;
    draw<Linear>(*module, range) || draw<Conv2d>(*module, range);
  }
  for (const auto& item : mask_decoder_->named_modules())
    if (auto* attention = item.value()->as<SamAttention>(); attention && !item.key().ends_with("self_attn"))
      attention->attend_to_alike();
}

SamOutput SamImpl::forward(const torch::Tensor& image, const SamPrompts& prompts, bool multimask) {
  return decode(image_embeddings(image), prompts, multimask);
}

torch::Tensor SamImpl::image_embeddings(const torch::Tensor& image) {
  check_shape("image", image,
              {-1, config_.vision.num_channels, config_.vision.image_size, config_.vision.image_size});
  return vision_encoder_(image).permute({0, 3, 1, 2});
}

SamOutput SamImpl::decode(const torch::Tensor& image_embeddings, const SamPrompts& prompts, bool multimask) {
  const auto grid = config_.vision.grid();
  check_shape("image_embeddings", image_embeddings, {-1, config_.vision.output_channels, grid, grid});
  check_prompts(prompts, image_embeddings.size(0));
  const auto image_BHWC = image_embeddings.permute({0, 2, 3, 1});
  const auto image = image_BHWC.flatten(1, 2).unsqueeze(1) + prompt_encoder_->dense(prompts);
  return mask_decoder_->forward(image, shared_image_embedding_->of_grid(grid),
                                prompt_encoder_->sparse(prompts), multimask);
}

void SamImpl::check_prompts(const SamPrompts& prompts, std::int64_t images) const {
  const auto& [points, labels, boxes, masks] = prompts;
  if (labels.defined() && !points.defined())
    throw std::invalid_argument("Sam: expected points with the labels, got none");
  if (points.defined()) check_shape("points", points, {images, -1, -1, 2});
  if (labels.defined()) check_shape("labels", labels, {images, points.size(1), points.size(2)});
  if (boxes.defined()) check_shape("boxes", boxes, {images, points.defined() ? points.size(1) : -1, 4});
  if (masks.defined()) check_shape("masks", masks, {images, 1, config_.mask_size(), config_.mask_size()});
}

void SamImpl::freeze_encoder() { freeze(*vision_encoder_); }
void SamImpl::freeze_prompt_encoder() { freeze(*prompt_encoder_); }

}  // namespace ddprun::sam
