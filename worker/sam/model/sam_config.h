#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::sam {

/// Activation functions, named as in transformers' configurations.
enum class Activation { kGelu, kRelu };

/// Label and coordinates that pad the prompt of an image with fewer points than others of its batch.
constexpr int kPaddingPoint = -10;

/// The shape of a SAM (Kirillov et al. 2023), with the names and defaults of transformers' config.json: SAM
/// base.
struct SamConfig {
  struct Vision {
    std::int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12, mlp_dim = 3072;
    std::int64_t num_channels = 3, image_size = 1024, patch_size = 16, output_channels = 256;
    std::int64_t window_size = 14;  ///< patches per side; 0: global attention in every layer
    std::vector<std::int64_t> global_attn_indexes = {2, 5, 8, 11};  ///< layers with global attention
    std::int64_t num_pos_feats = 128;
    bool qkv_bias = true, use_abs_pos = true, use_rel_pos = true;
    Activation hidden_act = Activation::kGelu;
    double layer_norm_eps = 1e-6;

    std::int64_t grid() const { return image_size / patch_size; }  ///< patches per side
  };
  struct PromptEncoder {
    std::int64_t hidden_size = 256, image_size = 1024, patch_size = 16;
    std::int64_t mask_input_channels = 16, num_point_embeddings = 4;
    Activation hidden_act = Activation::kGelu;
    double layer_norm_eps = 1e-6;
  };
  struct MaskDecoder {
    std::int64_t hidden_size = 256, mlp_dim = 2048, num_hidden_layers = 2, num_attention_heads = 8;
    std::int64_t attention_downsample_rate = 2, num_multimask_outputs = 3;
    std::int64_t iou_head_depth = 3, iou_head_hidden_dim = 256;
    Activation hidden_act = Activation::kRelu;
    double layer_norm_eps = 1e-6;
  };

  Vision vision = {};
  PromptEncoder prompt_encoder = {};
  MaskDecoder mask_decoder = {};
  /// For new weights of the vision encoder. Ignores the vision part's initializer_range: released files have
  /// 1e-10, with which a model trained from scratch would not see its image.
  double initializer_range = 0.02;

  static SamConfig base() { return {}; }
  static SamConfig large();
  static SamConfig huge();

  /// Pixels per side of the masks: four per patch.
  std::int64_t mask_size() const { return 4 * vision.grid(); }
};

/// What is wrong with this shape, with the key: "vision_config.hidden_size: ..."; empty: nothing.
std::string problem(const SamConfig& config);

/// Reads a config.json of transformers' SamModel, with transformers' defaults for missing keys. Ignores keys
/// that do not concern the model's shape.
///
/// throws  IoError naming path, the key and what was expected
SamConfig read_sam_config(const std::filesystem::path& path);

/// The same from text. path: the file to name in messages
SamConfig parse_sam_config(const std::string& text, const std::filesystem::path& path);

/// The shape as a config.json for transformers.
std::string to_json(const SamConfig& config);

}  // namespace ddprun::sam
