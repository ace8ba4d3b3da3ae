#include "worker/sam/model/sam_config.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::sam {

NLOHMANN_JSON_SERIALIZE_ENUM(Activation, {{Activation::kGelu, "gelu"}, {Activation::kRelu, "relu"}})

namespace {

std::string multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor) {
  if (value % divisor == 0) return "";
  return c10::str(key, ": expected a multiple of ", of, " (", divisor, "), got ", value);
}

std::string equal(const char* key, std::int64_t value, const char* other, std::int64_t expected) {
  if (value == expected) return "";
  return c10::str(key, ": expected ", other, " (", expected, "), got ", value);
}

constexpr std::int64_t kColours = 3;
constexpr std::int64_t kMostPatches = 512;                       // per side, of the image or a window
constexpr std::int64_t kMostPixels = 1 << 14;                    // per side
constexpr std::int64_t kMostModules = 1024;                      // of one kind
constexpr std::int64_t kMostParameters = std::int64_t{1} << 31;  // three times SAM huge

/// Keys with an upper bound, so that a model too large for any machine is rejected before allocation.
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

/// Roughly how many parameters a key adds to those before it; in floating point, which cannot overflow.
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

/// Empty if a machine can hold the model.
std::string too_large(const SamConfig& config) {
  for (const auto& [key, value, most] : bounded_values(config))
    if (value < 0 || value > most)
      return c10::str(key, ": expected a number from 0 to ", most, ", got ", value);
  double total = 0;
  for (const auto& [key, count] : parameter_counts(config))
    if (total += count; total > static_cast<double>(kMostParameters))
      return c10::str(key, ": expected a model of at most ", kMostParameters, " parameters, got more");
  return "";
}

using nlohmann::json;

constexpr std::int64_t kMostOfAnything = 1 << 16;

SamConfig larger(std::int64_t hidden_size, std::int64_t layers, std::vector<std::int64_t> global_layers) {
  SamConfig config;
  config.vision.hidden_size = hidden_size;
  config.vision.mlp_dim = 4 * hidden_size;
  config.vision.num_hidden_layers = layers;
  config.vision.num_attention_heads = 16;
  config.vision.global_attn_indexes = std::move(global_layers);
  return config;
}

/// One object of the file; its members replace the defaults.
class Section {
 public:
  Section(const std::filesystem::path& path, const json& object, std::string prefix)
      : path_(path), object_(object), prefix_(std::move(prefix)) {
    if (!object_.is_object()) fail("", "an object", object_);
  }

  Section child(const char* key) const {
    static const json kNothing = json::object();
    return {path_, has(key) ? object_.at(key) : kNothing, std::string(key) + "."};
  }
  /// Leaves the value unchanged if the key is absent.
  template <typename Value>
  void read(const char* key, Value& value) const {
    if (has(key)) set(value, key, object_.at(key));
  }
  /// null counts as absent.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  [[noreturn]] void fail(const std::string& key, const std::string& expected, const json& found) const {
    auto got = found.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
    if (got.size() > 60) got = got.substr(0, 60) + "...";
    auto name = prefix_ + key;
    if (!name.empty() && name.back() == '.') name.pop_back();
    throw IoError(path_, (name.empty() ? "" : name + ": ") + "expected " + expected + ", got " + got);
  }

 private:
  void set(std::int64_t& value, const char* key, const json& found) const {
    if (!found.is_number_integer() || found < 0 || found > kMostOfAnything)
      fail(key, "a whole number from 0 to " + std::to_string(kMostOfAnything), found);
    value = found;
  }
  void set(double& value, const char* key, const json& found) const {
    if (!found.is_number() || found < 0) fail(key, "a number from 0", found);
    value = found;
  }
  void set(bool& value, const char* key, const json& found) const {
    if (!found.is_boolean()) fail(key, "true or false", found);
    value = found;
  }
  void set(Activation& value, const char* key, const json& found) const {
    if (found != "gelu" && found != "relu") fail(key, R"("gelu" or "relu")", found);
    value = found;
  }
  void set(std::vector<std::int64_t>& values, const char* key, const json& found) const {
    const auto is_integer = [](const json& element) { return element.is_number_integer(); };
    if (!found.is_array() || !std::ranges::all_of(found, is_integer))
      fail(key, "a list of whole numbers", found);
    found.get_to(values);
  }

  const std::filesystem::path& path_;
  const json& object_;
  std::string prefix_;
};

std::int64_t default_mlp_dim(const Section& from, std::int64_t hidden_size) {
  double ratio = 4;
  from.read("mlp_ratio", ratio);
  const auto dim = static_cast<double>(hidden_size) * ratio;
  if (!(dim <= kMostOfAnything))
    from.fail("mlp_ratio", "hidden_size * mlp_ratio to be at most " + std::to_string(kMostOfAnything), ratio);
  return static_cast<std::int64_t>(dim);
}

constexpr bool kPositive = true;

/// Calls visit(object, key, member) for every key of the file, and visit(object, key, member, kPositive) for
/// those that must be above 0.
template <typename Config, typename Visit>
void visit_keys(Config& config, const Visit& visit) {
  auto& [vision, prompt, decoder, range] = config;
  const char* object = "vision_config";
  visit(object, "hidden_size", vision.hidden_size, kPositive);
  visit(object, "num_hidden_layers", vision.num_hidden_layers);
  visit(object, "num_attention_heads", vision.num_attention_heads, kPositive);
  visit(object, "mlp_dim", vision.mlp_dim, kPositive);
  visit(object, "num_channels", vision.num_channels);
  visit(object, "image_size", vision.image_size, kPositive);
  visit(object, "patch_size", vision.patch_size, kPositive);
  visit(object, "output_channels", vision.output_channels, kPositive);
  visit(object, "window_size", vision.window_size);
  visit(object, "global_attn_indexes", vision.global_attn_indexes);
  visit(object, "num_pos_feats", vision.num_pos_feats, kPositive);
  visit(object, "qkv_bias", vision.qkv_bias);
  visit(object, "use_abs_pos", vision.use_abs_pos);
  visit(object, "use_rel_pos", vision.use_rel_pos);
  visit(object, "hidden_act", vision.hidden_act);
  visit(object, "layer_norm_eps", vision.layer_norm_eps);
  object = "prompt_encoder_config";
  visit(object, "hidden_size", prompt.hidden_size, kPositive);
  visit(object, "image_size", prompt.image_size);
  visit(object, "patch_size", prompt.patch_size);
  visit(object, "mask_input_channels", prompt.mask_input_channels, kPositive);
  visit(object, "num_point_embeddings", prompt.num_point_embeddings);
  visit(object, "hidden_act", prompt.hidden_act);
  visit(object, "layer_norm_eps", prompt.layer_norm_eps);
  object = "mask_decoder_config";
  visit(object, "hidden_size", decoder.hidden_size, kPositive);
  visit(object, "mlp_dim", decoder.mlp_dim, kPositive);
  visit(object, "num_hidden_layers", decoder.num_hidden_layers);
  visit(object, "num_attention_heads", decoder.num_attention_heads, kPositive);
  visit(object, "attention_downsample_rate", decoder.attention_downsample_rate, kPositive);
  visit(object, "num_multimask_outputs", decoder.num_multimask_outputs, kPositive);
  visit(object, "iou_head_depth", decoder.iou_head_depth);
  visit(object, "iou_head_hidden_dim", decoder.iou_head_hidden_dim, kPositive);
  visit(object, "hidden_act", decoder.hidden_act);
  visit(object, "layer_norm_eps", decoder.layer_norm_eps);
}

}  // namespace

std::string problem(const SamConfig& config) {
  std::string wrong;
  visit_keys(config, [&](const std::string& object, const char* key, const auto& value, auto... positive) {
    if constexpr (sizeof...(positive) > 0)
      if (wrong.empty() && value < 1)
        wrong = object + "." + key + ": expected a number above 0, got " + std::to_string(value);
  });
  if (!wrong.empty()) return wrong;
  if (config.vision.num_channels != kColours)
    return c10::str("vision_config.num_channels: expected 3, got ", config.vision.num_channels);
  if (const auto line = too_large(config); !line.empty()) return line;
  if (config.prompt_encoder.num_point_embeddings < 4)
    return c10::str("prompt_encoder_config.num_point_embeddings: expected at least 4, got ",
                    config.prompt_encoder.num_point_embeddings);
  if (config.mask_decoder.iou_head_depth < 2)
    return c10::str("mask_decoder_config.iou_head_depth: expected at least 2, got ",
                    config.mask_decoder.iou_head_depth);
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

SamConfig SamConfig::large() { return larger(1024, 24, {5, 11, 17, 23}); }
SamConfig SamConfig::huge() { return larger(1280, 32, {7, 15, 23, 31}); }

SamConfig read_sam_config(const std::filesystem::path& path) {
  return parse_sam_config(read_file(path, kMostJsonBytes), path);
}

SamConfig parse_sam_config(const std::string& text, const std::filesystem::path& path) {
  const auto root = parse_json(text, path, "the config.json of a SamModel");
  const Section section(path, root, "");
  if (section.has("model_type") && root.at("model_type") != "sam")
    section.fail("model_type", "\"sam\"", root.at("model_type"));
  SamConfig config;
  section.read("initializer_range", config.initializer_range);
  const auto vision = section.child("vision_config");
  vision.read("hidden_size", config.vision.hidden_size);
  config.vision.mlp_dim = default_mlp_dim(vision, config.vision.hidden_size);
  visit_keys(config, [&](const char* object, const char* key, auto& member, auto...) {
    section.child(object).read(key, member);
  });
  if (const auto line = problem(config); !line.empty()) throw IoError(path, line);
  return config;
}

std::string to_json(const SamConfig& config) {
  const auto& encoder = config.prompt_encoder;
  json root = {{"architectures", {"SamModel"}},
               {"model_type", "sam"},
               {"dtype", "float32"},
               {"initializer_range", config.initializer_range},
               {"vision_config",
                {{"model_type", "sam_vision_model"}, {"initializer_range", config.initializer_range}}},
               {"prompt_encoder_config",
                {{"model_type", "sam_prompt_encoder"},
                 {"image_embedding_size", encoder.image_size / encoder.patch_size}}},
               {"mask_decoder_config", {{"model_type", "sam_mask_decoder"}}}};
  visit_keys(config, [&](const char* object, const char* key, const auto& member, auto...) {
    root[object][key] = member;
  });
  return root.dump(2) + "\n";
}

}  // namespace ddprun::sam
