#include "worker/sam/sam_model.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include <ddprun/common/errors.h>
#include "worker/sam/sam_checkpoint.h"
#include "worker/sam/tensor_cache.h"

namespace ddprun::worker {
namespace {

models::SamConfig small() {
  models::SamConfig config;
  auto& vision = config.vision;
  vision.image_size = config.prompt_encoder.image_size = 256;
  vision.hidden_size = 192;
  vision.num_hidden_layers = 4;
  vision.num_attention_heads = 3;
  vision.mlp_dim = 768;
  vision.global_attn_indexes = {3};
  return config;
}

models::Sam new_or_released(const Config& config) {
  if (!config.sam.checkpoint.empty()) return read_sam(config.sam.checkpoint);
  auto shape = sam_architecture(config.sam.architecture);
  if (const auto side = config.sam.image_size; side > 0) {
    shape.vision.image_size = shape.prompt_encoder.image_size = side;
    if (const auto line = models::misfit(shape); !line.empty()) throw UsageError("--image-size: " + line);
  }
  models::Sam model(shape);
  const auto& weights = config.model.init_weights;
  if (!weights.empty()) load_sam_weights(*model, weights);
  return model;
}

/// Of what the encoder's results depend on beside the image: its weights, its shape, and the types in which
/// it computes.
std::uint64_t version_of(const models::SamImpl& model, c10::DeviceType device) {
  const auto shape = models::to_json(model.config());
  const bool mixed = at::autocast::is_autocast_enabled(device);
  auto version =
      train::digest(at::tensor(std::vector<std::int64_t>(shape.begin(), shape.end())),
                    mixed ? 1 + static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(device)) : 0);
  for (const auto& parameter : model.named_parameters())
    if (parameter.key().starts_with("vision_encoder.")) version = train::digest(parameter.value(), version);
  return version;
}

}  // namespace

models::SamConfig sam_architecture(const std::string& name) {
  if (name == "small") return small();
  if (name == "base") return models::SamConfig::base();
  if (name == "large") return models::SamConfig::large();
  if (name == "huge") return models::SamConfig::huge();
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error))
    throw UsageError("--architecture: expected small, base, large, huge or a config.json, got '" + name +
                     "'");
  return models::read_sam_config(name);
}

models::Sam make_sam_model(const Config& config) {
  auto model = new_or_released(config);
  if (config.sam.freeze == "encoder") model->freeze_encoder();
  if (config.sam.freeze == "prompt") model->freeze_prompt_encoder();
  model->set_gradient_checkpointing(config.sam.gradient_checkpointing);
  return model;
}

Embedder make_embedder(models::Sam model, const Config& config) {
  Embedder encode = [model](const torch::Tensor& images) mutable { return model->image_embeddings(images); };
  if (config.sam.embedding_cache.empty()) return encode;
  // At the first image: a resumed run has read its weights by then.
  std::optional<train::TensorCache> cache;
  return [=, folder = config.sam.embedding_cache](const torch::Tensor& images) mutable {
    if (!cache) cache.emplace(folder, version_of(*model, images.device().type()));
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> embeddings;
    for (const auto& image : images.unbind())
      embeddings.push_back(
          cache->get(image, [&] { return encode(image.unsqueeze(0))[0].to(torch::kFloat); }));
    return torch::stack(embeddings).to(images.device());
  };
}

}  // namespace ddprun::worker
