#include "worker/sam/sam_model.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/safetensors.h>
#include "worker/sam/sam_checkpoint.h"

namespace ddprun::sam {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return hash ^ (hash >> 32);
}

/// returns  nullopt if the file is missing or damaged
std::optional<at::Tensor> read(const std::filesystem::path& path) {
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return std::nullopt;
  try {
    const auto found = serialize::read_safetensors(path).tensors;
    if (found.size() == 1) return found[0].second;
  } catch (const IoError&) {
  }
  return std::nullopt;
}

SamConfig small() {
  SamConfig config;
  auto& vision = config.vision;
  vision.image_size = config.prompt_encoder.image_size = 256;
  vision.hidden_size = 192;
  vision.num_hidden_layers = 4;
  vision.num_attention_heads = 3;
  vision.mlp_dim = 768;
  vision.global_attn_indexes = {3};
  return config;
}

Sam new_or_released(const worker::Config& config) {
  if (!config.sam.checkpoint.empty()) return read_sam(config.sam.checkpoint);
  auto shape = sam_architecture(config.sam.architecture);
  if (const auto side = config.sam.image_size; side > 0) {
    shape.vision.image_size = shape.prompt_encoder.image_size = side;
    if (const auto line = problem(shape); !line.empty()) throw UsageError("--image-size: " + line);
  }
  Sam model(shape);
  const auto& weights = config.model.init_weights;
  if (!weights.empty()) load_sam_weights(*model, weights);
  return model;
}

/// A hash of what the encoder's results depend on apart from the image: weights, shape and precision.
std::uint64_t version_of(const SamImpl& model, c10::DeviceType device) {
  const auto shape = to_json(model.config());
  const bool mixed = at::autocast::is_autocast_enabled(device);
  auto version = digest(at::tensor(std::vector<std::int64_t>(shape.begin(), shape.end())),
                        mixed ? 1 + static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(device)) : 0);
  for (const auto& parameter : model.named_parameters())
    if (parameter.key().starts_with("vision_encoder.")) version = digest(parameter.value(), version);
  return version;
}

}  // namespace

std::uint64_t digest(const at::Tensor& tensor, std::uint64_t before) {
  const auto plain = tensor.detach().cpu().contiguous();
  auto hash = mixed(before, plain.nbytes() + 1);
  for (const auto size : plain.sizes()) hash = mixed(hash, static_cast<std::uint64_t>(size));
  const auto* bytes = static_cast<const char*>(plain.const_data_ptr());
  const auto count = plain.nbytes();
  for (std::size_t i = 0; i < count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<std::size_t>(8, count - i));
    hash = mixed(hash, word);
  }
  return hash;
}

TensorCache::TensorCache(std::filesystem::path folder, std::uint64_t version)
    : folder_(std::move(folder)), version_(version) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw IoError(folder_, "cannot be created", error.value());
}

at::Tensor TensorCache::get(const at::Tensor& input, const std::function<at::Tensor()>& compute) const {
  char name[64];
  std::snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 ".safetensors", version_, digest(input));
  const auto path = folder_ / name;
  if (const auto found = read(path)) return *found;
  const auto result = compute().cpu();
  serialize::write_safetensors(path, {{"result", result}});
  return result;
}

SamConfig sam_architecture(const std::string& name) {
  if (name == "small") return small();
  if (name == "base") return SamConfig::base();
  if (name == "large") return SamConfig::large();
  if (name == "huge") return SamConfig::huge();
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error))
    throw UsageError("--architecture: expected small, base, large, huge or a config.json, got '" + name +
                     "'");
  return read_sam_config(name);
}

Sam make_sam_model(const worker::Config& config) {
  auto model = new_or_released(config);
  if (config.sam.freeze == "encoder") model->freeze_encoder();
  if (config.sam.freeze == "prompt") model->freeze_prompt_encoder();
  model->set_gradient_checkpointing(config.sam.gradient_checkpointing);
  return model;
}

Embedder make_embedder(Sam model, const worker::Config& config) {
  Embedder encode = [model](const torch::Tensor& images) mutable { return model->image_embeddings(images); };
  if (config.sam.embedding_cache.empty()) return encode;
  // Created at the first image, when a resumed run has read its weights.
  std::optional<TensorCache> cache;
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

}  // namespace ddprun::sam
