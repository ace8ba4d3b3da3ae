#include "worker/sam/model/sam_config.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/json_file.h>

namespace ddprun::models {
namespace {

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

/// One object of the file: members that are there replace the defaults.
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
  void read(const char* key, std::int64_t& value) const {
    if (!has(key)) return;
    const auto& found = object_.at(key);
    if (!found.is_number_integer() || found < 0 || found > kMostOfAnything)
      fail(key, "a whole number from 0 to " + std::to_string(kMostOfAnything), found);
    value = found;
  }
  void read(const char* key, double& value) const {
    if (!has(key)) return;
    if (!object_.at(key).is_number() || object_.at(key) < 0) fail(key, "a number from 0", object_.at(key));
    value = object_.at(key);
  }
  void read(const char* key, bool& value) const {
    if (!has(key)) return;
    if (!object_.at(key).is_boolean()) fail(key, "true or false", object_.at(key));
    value = object_.at(key);
  }
  void read(const char* key, Activation& value) const {
    if (!has(key)) return;
    const auto& found = object_.at(key);
    if (found != "gelu" && found != "relu") fail(key, R"("gelu" or "relu")", found);
    value = found == "gelu" ? Activation::kGelu : Activation::kRelu;
  }
  void read(const char* key, std::vector<std::int64_t>& values) const {
    if (!has(key)) return;
    const auto& found = object_.at(key);
    values.clear();
    if (!found.is_array()) fail(key, "a list of whole numbers", found);
    for (const auto& element : found) {
      if (!element.is_number_integer()) fail(key, "a list of whole numbers", found);
      values.push_back(element);
    }
  }
  /// null is as good as nothing.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  [[noreturn]] void fail(const std::string& key, const std::string& expected, const json& found) const {
    auto got = found.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
    if (got.size() > 60) got = got.substr(0, 60) + "...";
    auto name = prefix_ + key;
    if (!name.empty() && name.back() == '.') name.pop_back();
    throw IoError(path_, (name.empty() ? "" : name + ": ") + "expected " + expected + ", got " + got);
  }

 private:
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

// Every key of an object with the member that it is, for reading and for writing.

template <typename Vision, typename Visit>
void visit_vision(Vision& vision, const Visit& visit) {
  visit("hidden_size", vision.hidden_size);
  visit("num_hidden_layers", vision.num_hidden_layers);
  visit("num_attention_heads", vision.num_attention_heads);
  visit("mlp_dim", vision.mlp_dim);
  visit("num_channels", vision.num_channels);
  visit("image_size", vision.image_size);
  visit("patch_size", vision.patch_size);
  visit("output_channels", vision.output_channels);
  visit("window_size", vision.window_size);
  visit("global_attn_indexes", vision.global_attn_indexes);
  visit("num_pos_feats", vision.num_pos_feats);
  visit("qkv_bias", vision.qkv_bias);
  visit("use_abs_pos", vision.use_abs_pos);
  visit("use_rel_pos", vision.use_rel_pos);
  visit("hidden_act", vision.hidden_act);
  visit("layer_norm_eps", vision.layer_norm_eps);
}

template <typename PromptEncoder, typename Visit>
void visit_prompt_encoder(PromptEncoder& encoder, const Visit& visit) {
  visit("hidden_size", encoder.hidden_size);
  visit("image_size", encoder.image_size);
  visit("patch_size", encoder.patch_size);
  visit("mask_input_channels", encoder.mask_input_channels);
  visit("num_point_embeddings", encoder.num_point_embeddings);
  visit("hidden_act", encoder.hidden_act);
  visit("layer_norm_eps", encoder.layer_norm_eps);
}

template <typename MaskDecoder, typename Visit>
void visit_mask_decoder(MaskDecoder& decoder, const Visit& visit) {
  visit("hidden_size", decoder.hidden_size);
  visit("mlp_dim", decoder.mlp_dim);
  visit("num_hidden_layers", decoder.num_hidden_layers);
  visit("num_attention_heads", decoder.num_attention_heads);
  visit("attention_downsample_rate", decoder.attention_downsample_rate);
  visit("num_multimask_outputs", decoder.num_multimask_outputs);
  visit("iou_head_depth", decoder.iou_head_depth);
  visit("iou_head_hidden_dim", decoder.iou_head_hidden_dim);
  visit("hidden_act", decoder.hidden_act);
  visit("layer_norm_eps", decoder.layer_norm_eps);
}

auto reader(const Section& from) {
  return [from](const char* key, auto& member) { from.read(key, member); };
}

struct Writer {
  void operator()(const char* key, Activation activation) const {
    object[key] = activation == Activation::kGelu ? "gelu" : "relu";
  }
  template <typename Member>
  void operator()(const char* key, const Member& member) const {
    object[key] = member;
  }
  json& object;
};

}  // namespace

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
  visit_vision(config.vision, reader(vision));
  visit_prompt_encoder(config.prompt_encoder, reader(section.child("prompt_encoder_config")));
  visit_mask_decoder(config.mask_decoder, reader(section.child("mask_decoder_config")));
  if (const auto line = misfit(config); !line.empty()) throw IoError(path, line);
  return config;
}

std::string to_json(const SamConfig& config) {
  json vision = {{"model_type", "sam_vision_model"}, {"initializer_range", config.initializer_range}};
  visit_vision(config.vision, Writer{vision});
  const auto& encoder = config.prompt_encoder;
  json prompt = {{"model_type", "sam_prompt_encoder"},
                 {"image_embedding_size", encoder.image_size / encoder.patch_size}};
  visit_prompt_encoder(encoder, Writer{prompt});
  json decoder = {{"model_type", "sam_mask_decoder"}};
  visit_mask_decoder(config.mask_decoder, Writer{decoder});
  const json root = {{"architectures", {"SamModel"}},
                     {"model_type", "sam"},
                     {"dtype", "float32"},
                     {"initializer_range", config.initializer_range},
                     {"vision_config", vision},
                     {"prompt_encoder_config", prompt},
                     {"mask_decoder_config", decoder}};
  return root.dump(2) + "\n";
}

}  // namespace ddprun::models
