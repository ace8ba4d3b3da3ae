#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/sam/model/sam_config.h"

namespace ddprun::models {
namespace {

/// The keys whose values must be above 0.
std::vector<std::pair<const char*, std::int64_t>> positive_values(const SamConfig& c) {
  return {{"vision_config.hidden_size", c.vision.hidden_size},
          {"vision_config.num_attention_heads", c.vision.num_attention_heads},
          {"vision_config.mlp_dim", c.vision.mlp_dim},
          {"vision_config.image_size", c.vision.image_size},
          {"vision_config.patch_size", c.vision.patch_size},
          {"vision_config.output_channels", c.vision.output_channels},
          {"vision_config.num_pos_feats", c.vision.num_pos_feats},
          {"prompt_encoder_config.hidden_size", c.prompt_encoder.hidden_size},
          {"prompt_encoder_config.mask_input_channels", c.prompt_encoder.mask_input_channels},
          {"mask_decoder_config.hidden_size", c.mask_decoder.hidden_size},
          {"mask_decoder_config.mlp_dim", c.mask_decoder.mlp_dim},
          {"mask_decoder_config.num_attention_heads", c.mask_decoder.num_attention_heads},
          {"mask_decoder_config.attention_downsample_rate", c.mask_decoder.attention_downsample_rate},
          {"mask_decoder_config.num_multimask_outputs", c.mask_decoder.num_multimask_outputs},
          {"mask_decoder_config.iou_head_hidden_dim", c.mask_decoder.iou_head_hidden_dim}};
}

std::string multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor) {
  if (value % divisor == 0) return "";
  return std::string(key) + ": expected a multiple of " + of + " (" + std::to_string(divisor) + "), got " +
         std::to_string(value);
}

std::string equal(const char* key, std::int64_t value, const char* other, std::int64_t expected) {
  if (value == expected) return "";
  return std::string(key) + ": expected " + other + " (" + std::to_string(expected) + "), got " +
         std::to_string(value);
}

constexpr std::int64_t kColours = 3;
constexpr std::int64_t kMostPatches = 512;                 // of a side, of the image or a window
constexpr std::int64_t kMostPixels = 1 << 14;              // of a side
constexpr std::int64_t kMostModules = 1024;                // of one kind
constexpr double kMostParameters = std::int64_t{1} << 31;  // three times SAM huge

/// The keys whose values have an upper bound, and that: what no machine holds is refused before it is
/// allocated.
std::vector<std::tuple<const char*, std::int64_t, std::int64_t>> bounded_values(const SamConfig& c) {
  return {{"vision_config.num_hidden_layers", c.vision.num_hidden_layers, kMostModules},
          {"vision_config.image_size", c.vision.image_size, kMostPixels},
          {"vision_config.image_size / patch_size", c.vision.grid(), kMostPatches},
          {"vision_config.window_size", c.vision.window_size, kMostPatches},
          {"prompt_encoder_config.num_point_embeddings", c.prompt_encoder.num_point_embeddings, kMostModules},
          {"mask_decoder_config.num_hidden_layers", c.mask_decoder.num_hidden_layers, kMostModules},
          {"mask_decoder_config.num_multimask_outputs", c.mask_decoder.num_multimask_outputs, kMostModules},
          {"mask_decoder_config.iou_head_depth", c.mask_decoder.iou_head_depth, kMostModules}};
}

/// About as many parameters as a key adds to those before it; in floating point, which cannot overflow.
std::vector<std::pair<const char*, double>> parameter_counts(const SamConfig& config) {
  const auto& [v, p, d, range] = config;
  const auto of = [](std::int64_t value) { return static_cast<double>(value); };
  const double width = of(v.hidden_size), grid = of(v.grid()), patch = of(v.patch_size);
  const double mlp = 2 * width * of(v.mlp_dim), layer = 4 * width * width + mlp;
  const double out = of(v.output_channels), decoder = of(d.hidden_size),
               nets = of(d.num_multimask_outputs + 1);
  const double decoder_layer = 8 * decoder * decoder + 2 * decoder * of(d.mlp_dim);
  const double score = of(d.iou_head_hidden_dim);
  return {{"vision_config.hidden_size", 4 * width * width},
          {"vision_config.mlp_dim", mlp},
          {"vision_config.num_hidden_layers", of(v.num_hidden_layers - 1) * layer},
          {"vision_config.patch_size", of(v.num_channels) * patch * patch * width},
          {"vision_config.image_size", grid * grid * width},
          {"vision_config.output_channels", out * (width + 9 * out)},
          {"prompt_encoder_config.mask_input_channels",
           of(p.mask_input_channels) * (of(p.hidden_size) + of(p.mask_input_channels))},
          {"mask_decoder_config.mlp_dim", decoder_layer},
          {"mask_decoder_config.num_hidden_layers", of(d.num_hidden_layers - 1) * decoder_layer},
          {"mask_decoder_config.num_multimask_outputs", 2 * nets * decoder * decoder},
          {"mask_decoder_config.iou_head_hidden_dim", decoder * score + score * score},
          {"mask_decoder_config.iou_head_depth", of(d.iou_head_depth - 3) * score * score}};
}

/// Empty if the sizes are such that a machine can hold the model.
std::string too_large(const SamConfig& config) {
  for (const auto& [key, value, most] : bounded_values(config))
    if (value < 0 || value > most)
      return std::string(key) + ": expected a number from 0 to " + std::to_string(most) + ", got " +
             std::to_string(value);
  double total = 0;
  for (const auto& [key, count] : parameter_counts(config))
    if (total += count; total > kMostParameters)
      return std::string(key) + ": expected a model of at most " +
             std::to_string(static_cast<std::int64_t>(kMostParameters)) + " parameters, got more";
  return "";
}

}  // namespace

std::string misfit(const SamConfig& config) {
  for (const auto& [key, value] : positive_values(config))
    if (value < 1) return std::string(key) + ": expected a number above 0, got " + std::to_string(value);
  if (config.vision.num_channels != kColours)
    return "vision_config.num_channels: expected 3, got " + std::to_string(config.vision.num_channels);
  if (const auto line = too_large(config); !line.empty()) return line;
  if (config.prompt_encoder.num_point_embeddings < 4)
    return "prompt_encoder_config.num_point_embeddings: expected 4 at least, got " +
           std::to_string(config.prompt_encoder.num_point_embeddings);
  if (config.mask_decoder.iou_head_depth < 2)
    return "mask_decoder_config.iou_head_depth: expected 2 at least, got " +
           std::to_string(config.mask_decoder.iou_head_depth);
  const auto& [vision, prompt, decoder, range] = config;
  const auto inner = decoder.hidden_size / decoder.attention_downsample_rate;
  for (const auto& line :
       {multiple("vision_config.hidden_size", vision.hidden_size, "num_attention_heads",
                 vision.num_attention_heads),
        multiple("vision_config.image_size", vision.image_size, "patch_size", vision.patch_size),
        multiple("prompt_encoder_config.mask_input_channels", prompt.mask_input_channels, "its convolutions",
                 4),
        multiple("mask_decoder_config.hidden_size", decoder.hidden_size, "its convolutions", 8),
        multiple("mask_decoder_config.hidden_size", decoder.hidden_size, "num_attention_heads",
                 decoder.num_attention_heads),
        multiple("mask_decoder_config.hidden_size", decoder.hidden_size, "attention_downsample_rate",
                 decoder.attention_downsample_rate),
        multiple("mask_decoder_config.hidden_size / 2", decoder.hidden_size / 2, "num_attention_heads",
                 decoder.num_attention_heads),
        multiple("mask_decoder_config.hidden_size / attention_downsample_rate", inner, "num_attention_heads",
                 decoder.num_attention_heads),
        equal("prompt_encoder_config.image_size", prompt.image_size, "vision_config.image_size",
              vision.image_size),
        equal("prompt_encoder_config.patch_size", prompt.patch_size, "vision_config.patch_size",
              vision.patch_size),
        equal("prompt_encoder_config.hidden_size", prompt.hidden_size, "vision_config.output_channels",
              vision.output_channels),
        equal("mask_decoder_config.hidden_size", decoder.hidden_size, "vision_config.output_channels",
              vision.output_channels),
        equal("vision_config.num_pos_feats", vision.num_pos_feats,
              "half of prompt_encoder_config.hidden_size", prompt.hidden_size / 2)})
    if (!line.empty()) return line;
  return "";
}

}  // namespace ddprun::models
