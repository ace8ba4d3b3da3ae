#include "tests/worker/sam/sam_support.h"

#include <torch/types.h>

#include <cmath>

#include <ddprun/common/files.h>
#include "tests/worker/ddprun/ddp/parity_models.h"

namespace ddprun::test {

sam::Sam make_formula_sam(const nlohmann::json& config) {
  const TempDir folder;
  write_file_atomic(folder.path() / "config.json", config.dump());
  sam::Sam model(sam::read_sam_config(folder.path() / "config.json"));
  model->to(torch::kDouble);
  fill_by_formula(*model);
  auto positions = model->named_buffers()[kSamPositions];
  const double scale =
      std::exp2(std::nearbyint(std::log2(2 * std::sqrt(6.0 / static_cast<double>(positions.size(1))))));
  positions.copy_(formula(kSamPositions, positions.sizes()) * scale);
  return model;
}

sam::SamConfig small_sam_config() {
  sam::SamConfig config;
  auto& [vision, prompt, decoder, range] = config;
  vision.hidden_size = 16;
  vision.num_hidden_layers = 2;
  vision.num_attention_heads = 2;
  vision.mlp_dim = 32;
  vision.image_size = prompt.image_size = 40;
  vision.patch_size = prompt.patch_size = 8;
  vision.output_channels = prompt.hidden_size = decoder.hidden_size = 16;
  vision.window_size = 3;
  vision.global_attn_indexes = {1};
  vision.num_pos_feats = 8;
  decoder.mlp_dim = 32;
  decoder.num_attention_heads = 2;
  decoder.iou_head_hidden_dim = 16;
  return config;
}

sam::Sam small_sam(std::uint64_t seed) {
  torch::manual_seed(seed);
  return sam::Sam(small_sam_config());
}

SamInput make_sam_input(const sam::SamConfig& config, const std::string& prompts, torch::Dtype dtype) {
  constexpr int kImages = 2, kPrompts = 2;
  const auto size = config.vision.image_size;
  const auto place = [&](const char* name, at::IntArrayRef shape) {
    return ((formula(name, shape) + 0.5) * size).to(dtype);
  };
  SamInput input;
  input.image = (4 * formula("image", {kImages, 3, size, size})).to(dtype);
  if (prompts.find("points") != std::string::npos) {
    input.prompts.points = place("points", {kImages, kPrompts, 3, 2});
    input.prompts.labels = torch::tensor({1, 0, -1, 0, 1, -10, 1, -10, -10, -10, 1, 0}, torch::kInt64)
                               .view({kImages, kPrompts, 3});
  }
  if (prompts.find("boxes") != std::string::npos)
    input.prompts.boxes = place("boxes", {kImages, kPrompts, 4});
  if (prompts.find("masks") != std::string::npos) {
    const auto side = config.mask_size();
    input.prompts.masks = (8 * formula("masks", {kImages, 1, side, side})).to(dtype);
  }
  return input;
}

double relative_difference(const torch::Tensor& a, const torch::Tensor& b) {
  const auto wide = b.to(torch::kDouble);
  return ((a.to(torch::kDouble) - wide).norm() / wide.norm()).item<double>();
}

}  // namespace ddprun::test
