#include "worker/sam/model/sam.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include <sstream>
#include <stdexcept>

namespace ddprun::sam {
namespace {

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
  std::ostringstream text;
  text << "Sam: expected " << name << " of shape " << expected << " (-1: any), got " << tensor.sizes();
  throw std::invalid_argument(text.str());
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

SamImpl::SamImpl(const SamConfig& config)
    : config_(checked(config)),
      shared_image_embedding_(
          register_module("shared_image_embedding", SamPositionalEmbedding(config.vision.num_pos_feats))),
      vision_encoder_(register_module("vision_encoder", SamVisionEncoder(config.vision))),
      prompt_encoder_(register_module("prompt_encoder",
                                      SamPromptEncoder(config.prompt_encoder, shared_image_embedding_))),
      mask_decoder_(register_module("mask_decoder", SamMaskDecoder(config.mask_decoder))) {
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
