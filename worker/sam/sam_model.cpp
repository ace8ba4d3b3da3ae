#include "worker/sam/sam_model.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/model/parallel_model.h>
#include "worker/config/kept_checkpoints.h"
#include "worker/sam/data/prompted_batch.h"
#include "worker/tasks/registry.h"

namespace ddprun::sam {
namespace {

namespace fs = std::filesystem;

// Two names for one tensor: transformers writes the first, older releases wrote both.
constexpr const char* kPositions = "shared_image_embedding.positional_embedding";
constexpr const char* kSamePositions = "prompt_encoder.shared_embedding.positional_embedding";

constexpr SamProcessor::Options kProcessor = {};  // for its colours

const torch::Tensor* find(const train::StateDict& weights, const char* name) {
  const auto found = std::ranges::find_if(weights, [&](const auto& item) { return item.first == name; });
  return found == weights.end() ? nullptr : &found->second;
}

/// Adds the missing one of the two names.
train::StateDict with_both_names(train::StateDict weights, const std::filesystem::path& source) {
  const auto* first = find(weights, kPositions);
  const auto* second = find(weights, kSamePositions);
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {  // of any two types
    return !a.to(at::kDouble).equal(b.to(at::kDouble));
  };
  if (first != nullptr && second != nullptr && differ(*first, *second))
    throw IoError(source, std::string("its tensors \"") + kPositions + "\" and \"" + kSamePositions +
                              "\" differ, expected one tensor under both names");
  if (first != nullptr && second == nullptr)
    weights.emplace_back(kSamePositions, *first);
  else if (first == nullptr && second != nullptr)
    weights.emplace_back(kPositions, *second);
  return weights;
}

/// As written by SamProcessor.save_pretrained().
std::string processor_json(std::int64_t image_size, std::int64_t mask_size) {
  const auto square = [](std::int64_t side) { return nlohmann::json{{"height", side}, {"width", side}}; };
  const nlohmann::json root = {{"image_processor_type", "SamImageProcessor"},
                               {"processor_class", "SamProcessor"},
                               {"size", {{"longest_edge", image_size}}},
                               {"pad_size", square(image_size)},
                               {"mask_size", {{"longest_edge", mask_size}}},
                               {"mask_pad_size", square(mask_size)},
                               {"image_mean", kProcessor.mean},
                               {"image_std", kProcessor.std},
                               {"rescale_factor", 1.0 / 255},
                               {"resample", 2}};
  return root.dump(2) + "\n";
}

void check_colours(const std::filesystem::path& path, const nlohmann::json& processor, const char* key,
                   const std::array<double, 3>& expected) {
  if (!processor.contains(key)) return;
  const auto& found = processor.at(key);
  const auto same = [](const nlohmann::json& value, double wanted) {
    return value.is_number() && std::abs(value.get<double>() - wanted) < 1e-6;
  };
  if (found.is_array() && std::ranges::equal(found, expected, same)) return;
  throw IoError(
      path,
      std::string(key) + ": expected " + nlohmann::json(expected).dump() + ", got " +
          found.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace).substr(0, 60));
}

/// A model trained with colours other than SamProcessor's would predict wrongly, and be saved wrongly.
void check_processor(const std::filesystem::path& folder) {
  for (const char* name : {"preprocessor_config.json", "processor_config.json"}) {  // of transformers 4 and 5
    std::error_code unknown;
    if (!std::filesystem::exists(folder / name, unknown)) continue;
    const auto root = read_json(folder / name, "what SamProcessor.save_pretrained() writes");
    const auto& processor = root.contains("image_processor") ? root.at("image_processor") : root;
    check_colours(folder / name, processor, "image_mean", kProcessor.mean);
    check_colours(folder / name, processor, "image_std", kProcessor.std);
  }
}

/// source  the file named in errors
void load_sam_weights(SamImpl& model, const train::StateDict& weights, const fs::path& source) {
  for (const auto& [name, tensor] : weights)
    if (!tensor.is_floating_point())
      throw IoError(source, "its tensor \"" + name + "\" is of type " + c10::toString(tensor.scalar_type()) +
                                ", expected floating-point numbers");
  train::load_weights(model, with_both_names(weights, source), source);
}

/// The weights file that `path` means: itself, or one in a folder laid out by Hugging Face's libraries.
fs::path find_weights(const fs::path& path) {
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    throw IoError(path, "does not exist, expected a model folder or a weights file");
  if (!fs::is_directory(path, unknown)) return path;
  for (const char* name : {"model.safetensors", "pytorch_model.bin"})
    if (fs::exists(path / name, unknown)) return path / name;
  for (const char* name : {"model.safetensors.index.json", "pytorch_model.bin.index.json"})
    if (fs::exists(path / name, unknown))
      throw IoError(path / name,
                    "has the weights in several files, expected one: save it with a larger max_shard_size");
  throw IoError(path, "holds no model, expected model.safetensors or pytorch_model.bin in it");
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw IoError(folder, "cannot be created", failure.value());
}

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
  auto& prompts = config.prompt_encoder;
  auto& decoder = config.mask_decoder;
  vision.image_size = prompts.image_size = 128;
  vision.patch_size = prompts.patch_size = 8;
  vision.hidden_size = 96;
  vision.num_hidden_layers = 4;
  vision.num_attention_heads = 3;
  vision.mlp_dim = 384;
  vision.window_size = 8;
  vision.global_attn_indexes = {1, 3};
  vision.output_channels = prompts.hidden_size = decoder.hidden_size = 64;
  vision.num_pos_feats = 32;
  prompts.mask_input_channels = 8;
  decoder.mlp_dim = 256;
  decoder.num_attention_heads = 4;
  decoder.iou_head_hidden_dim = 64;
  return config;
}

/// What --architecture names.
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

Sam new_or_released(const worker::Config& config) {
  const auto& released = config.sam.checkpoint;
  const bool resumes = config.resumes && !config.resumed_shape.empty();
  if (!released.empty() && !resumes) return read_sam(released);
  const auto [file, tensors] = worker::read_given_weights(config);
  // A run may have begun with a model that no setting names, and the file that one names may have changed.
  auto of_run = config.resumed_shape;
  if (!file.empty())
    if (const auto state = worker::run_of_weights(file)) of_run = state->model_config;
  const auto& named = config.sam.architecture;  // empty: of_run
  auto shape = of_run.empty() || (config.stated.contains("architecture") && !named.empty())
                   ? sam_architecture(named)
                   : parse_sam_config(of_run, "the checkpoint's model");
  if (const auto side = config.sam.image_size; side > 0) {
    shape.vision.image_size = shape.prompt_encoder.image_size = side;
    if (const auto line = problem(shape); !line.empty()) throw UsageError("--image-size: " + line);
  }
  Sam model(shape);
  if (!file.empty()) load_sam_weights(*model, tensors, file);
  return model;
}

/// A hash of everything but the image that affects the encoder's results: weights, shape and precision.
std::uint64_t version_of(const SamImpl& model, c10::DeviceType device) {
  const auto shape = to_json(model.config());
  const bool mixed = at::autocast::is_autocast_enabled(device);
  auto version = digest(at::tensor(std::vector<std::int64_t>(shape.begin(), shape.end())),
                        mixed ? 1 + static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(device)) : 0);
  for (const auto& parameter : model.named_parameters())
    if (parameter.key().starts_with("vision_encoder.")) version = digest(parameter.value(), version);
  return version;
}

/// The model of a run's checkpoint, with its averaged weights if it has any.
Sam read_trained_sam(const fs::path& checkpoint) {
  const auto state = train::read_weights_of_checkpoint(checkpoint);
  if (state.model_config.empty())
    throw IoError(checkpoint, "is a checkpoint of another task, expected one of the task sam");
  Sam model(parse_sam_config(state.model_config, checkpoint));
  load_sam_weights(*model, train::weights_to_evaluate(state), checkpoint);
  return model;
}

}  // namespace

Sam read_sam(const std::filesystem::path& path) {
  train::put_back_half_replaced(path);
  std::error_code unknown;
  if (worker::is_run_folder(path) && !fs::exists(path / "config.json", unknown))
    return read_trained_sam(worker::checkpoint_of(path, "--checkpoint: "));
  const auto weights = find_weights(path), config = weights.parent_path() / "config.json";
  if (!fs::exists(config, unknown))
    throw IoError(config,
                  "does not exist, expected it beside " + weights.filename().string() +
                      "; for a run, give its folder, or one that `worker export CHECKPOINT FOLDER` writes");
  check_processor(config.parent_path());
  Sam model(read_sam_config(config));
  load_sam_weights(*model, train::read_weights(weights), weights);
  return model;
}

void write_sam(const std::filesystem::path& folder, const SamImpl& model) {
  train::StateDict weights;
  for (const auto& item : train::state_dict(model))
    weights.emplace_back(item.key().toStringRef(), item.value().toTensor());
  write_sam(folder, model.config(), weights);
}

void write_sam(const std::filesystem::path& folder, const SamConfig& config,
               const train::StateDict& weights) {
  auto written = with_both_names(weights, folder);
  for (auto& [name, tensor] : written)  // under both names, which every release of transformers reads
    if (name == kSamePositions) tensor = tensor.clone();
  make_folder(folder);
  serialize::write_safetensors(folder / "model.safetensors", written);
  write_file_atomic(folder / "config.json", to_json(config));
  write_file_atomic(folder / "preprocessor_config.json",
                    processor_json(config.vision.image_size, config.mask_size()));
}

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
  make_folder(folder_);
}

at::Tensor TensorCache::get(const at::Tensor& input, const std::function<at::Tensor()>& compute) const {
  const auto path = folder_ / formatted("%016" PRIx64 "-%016" PRIx64 ".safetensors", version_, digest(input));
  if (const auto found = read(path)) return *found;
  const auto result = compute().cpu();
  serialize::write_safetensors(path, {{"result", result}});
  return result;
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
  // Created at the first image, after a resumed run has read its weights.
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
