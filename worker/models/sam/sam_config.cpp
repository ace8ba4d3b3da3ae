#include "worker/models/sam/sam_config.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <utility>

#include "common/errors.h"
#include "common/files.h"
#include "common/json_file.h"

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

void read_vision(const Section& from, SamConfig::Vision& to) {
  from.read("hidden_size", to.hidden_size);
  from.read("num_hidden_layers", to.num_hidden_layers);
  from.read("num_attention_heads", to.num_attention_heads);
  to.mlp_dim = default_mlp_dim(from, to.hidden_size);
  from.read("mlp_dim", to.mlp_dim);
  from.read("num_channels", to.num_channels);
  from.read("image_size", to.image_size);
  from.read("patch_size", to.patch_size);
  from.read("output_channels", to.output_channels);
  from.read("window_size", to.window_size);
  from.read("global_attn_indexes", to.global_attn_indexes);
  from.read("num_pos_feats", to.num_pos_feats);
  from.read("qkv_bias", to.qkv_bias);
  from.read("use_abs_pos", to.use_abs_pos);
  from.read("use_rel_pos", to.use_rel_pos);
  from.read("hidden_act", to.hidden_act);
  from.read("layer_norm_eps", to.layer_norm_eps);
}

void read_prompt_encoder(const Section& from, SamConfig::PromptEncoder& to) {
  from.read("hidden_size", to.hidden_size);
  from.read("image_size", to.image_size);
  from.read("patch_size", to.patch_size);
  from.read("mask_input_channels", to.mask_input_channels);
  from.read("num_point_embeddings", to.num_point_embeddings);
  from.read("hidden_act", to.hidden_act);
  from.read("layer_norm_eps", to.layer_norm_eps);
}

void read_mask_decoder(const Section& from, SamConfig::MaskDecoder& to) {
  from.read("hidden_size", to.hidden_size);
  from.read("mlp_dim", to.mlp_dim);
  from.read("num_hidden_layers", to.num_hidden_layers);
  from.read("num_attention_heads", to.num_attention_heads);
  from.read("attention_downsample_rate", to.attention_downsample_rate);
  from.read("num_multimask_outputs", to.num_multimask_outputs);
  from.read("iou_head_depth", to.iou_head_depth);
  from.read("iou_head_hidden_dim", to.iou_head_hidden_dim);
  from.read("hidden_act", to.hidden_act);
  from.read("layer_norm_eps", to.layer_norm_eps);
}

const char* name_of(Activation activation) { return activation == Activation::kGelu ? "gelu" : "relu"; }

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
  read_vision(section.child("vision_config"), config.vision);
  read_prompt_encoder(section.child("prompt_encoder_config"), config.prompt_encoder);
  read_mask_decoder(section.child("mask_decoder_config"), config.mask_decoder);
  if (const auto line = misfit(config); !line.empty()) throw IoError(path, line);
  return config;
}

std::string to_json(const SamConfig& config) {
  const auto& [v, p, d, range] = config;
  const json vision = {{"model_type", "sam_vision_model"},
                       {"hidden_size", v.hidden_size},
                       {"num_hidden_layers", v.num_hidden_layers},
                       {"num_attention_heads", v.num_attention_heads},
                       {"mlp_dim", v.mlp_dim},
                       {"num_channels", v.num_channels},
                       {"image_size", v.image_size},
                       {"patch_size", v.patch_size},
                       {"output_channels", v.output_channels},
                       {"window_size", v.window_size},
                       {"global_attn_indexes", v.global_attn_indexes},
                       {"num_pos_feats", v.num_pos_feats},
                       {"qkv_bias", v.qkv_bias},
                       {"use_abs_pos", v.use_abs_pos},
                       {"use_rel_pos", v.use_rel_pos},
                       {"hidden_act", name_of(v.hidden_act)},
                       {"layer_norm_eps", v.layer_norm_eps},
                       {"initializer_range", range}};
  const json prompt = {{"model_type", "sam_prompt_encoder"},
                       {"hidden_size", p.hidden_size},
                       {"image_size", p.image_size},
                       {"patch_size", p.patch_size},
                       {"image_embedding_size", p.image_size / p.patch_size},
                       {"mask_input_channels", p.mask_input_channels},
                       {"num_point_embeddings", p.num_point_embeddings},
                       {"hidden_act", name_of(p.hidden_act)},
                       {"layer_norm_eps", p.layer_norm_eps}};
  const json decoder = {{"model_type", "sam_mask_decoder"},
                        {"hidden_size", d.hidden_size},
                        {"mlp_dim", d.mlp_dim},
                        {"num_hidden_layers", d.num_hidden_layers},
                        {"num_attention_heads", d.num_attention_heads},
                        {"attention_downsample_rate", d.attention_downsample_rate},
                        {"num_multimask_outputs", d.num_multimask_outputs},
                        {"iou_head_depth", d.iou_head_depth},
                        {"iou_head_hidden_dim", d.iou_head_hidden_dim},
                        {"hidden_act", name_of(d.hidden_act)},
                        {"layer_norm_eps", d.layer_norm_eps}};
  const json root = {
      {"architectures", {"SamModel"}}, {"model_type", "sam"},     {"dtype", "float32"},
      {"initializer_range", range},    {"vision_config", vision}, {"prompt_encoder_config", prompt},
      {"mask_decoder_config", decoder}};
  return root.dump(2) + "\n";
}

}  // namespace ddprun::models
