#include "worker/sam/model/vision_encoder.h"

#include <torch/types.h>

#include <algorithm>

#include "worker/models/recompute.h"

namespace ddprun::sam {
namespace {

torch::nn::Conv2d without_bias(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2).bias(false));
}

/// The layer's window; 0: global attention.
std::int64_t window_of(const SamConfig::Vision& config, std::int64_t layer) {
  const auto& global = config.global_attn_indexes;
  return std::find(global.begin(), global.end(), layer) == global.end() ? config.window_size : 0;
}

}  // namespace

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
      attn_(register_module("attn", VisionAttention(config, window))),
      layer_norm2_(register_module("layer_norm2", layer_norm(config.hidden_size, config.layer_norm_eps))),
      mlp_(register_module("mlp", SamMlp(config.hidden_size, config.mlp_dim, config.hidden_act))) {}

torch::Tensor SamVisionLayerImpl::forward(const torch::Tensor& x_BHWC) {
  const auto y_BHWC = x_BHWC + attn_(layer_norm1_(x_BHWC));
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
