#include "worker/sam/model/prompt_encoder.h"

#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <numbers>
#include <utility>

namespace ddprun::sam {
namespace {

constexpr int kNoPoint = -1;

torch::nn::Conv2d halving(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 2).stride(2));
}

torch::Tensor as_float(const torch::Tensor& x) { return x.is_floating_point() ? x : x.to(torch::kFloat); }

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

}  // namespace ddprun::sam
