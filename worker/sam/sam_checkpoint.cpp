#include "worker/sam/sam_checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/json_file.h>
#include "worker/sam/data/sam_processor.h"
#include "worker/sam/model_folder.h"

namespace ddprun::worker {
namespace {

// Two names of one tensor: transformers writes the first, older releases both.
constexpr const char* kPositions = "shared_image_embedding.positional_embedding";
constexpr const char* kSamePositions = "prompt_encoder.shared_embedding.positional_embedding";

constexpr data::SamProcessor::Options kProcessor = {};  // whose colours the files name

const torch::Tensor* find(const train::StateDict& weights, const char* name) {
  const auto found =
      std::find_if(weights.begin(), weights.end(), [&](const auto& item) { return item.first == name; });
  return found == weights.end() ? nullptr : &found->second;
}

/// The weights with both names of the tensor that has two.
train::StateDict with_both_names(train::StateDict weights, const std::filesystem::path& source) {
  const auto* first = find(weights, kPositions);
  const auto* second = find(weights, kSamePositions);
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {  // of any two types
    return !a.to(at::kDouble).equal(b.to(at::kDouble));
  };
  if (first != nullptr && second != nullptr && differ(*first, *second))
    throw IoError(source, std::string("its tensors \"") + kPositions + "\" and \"" + kSamePositions +
                              "\" differ, expected one under two names");
  if (first != nullptr && second == nullptr)
    weights.emplace_back(kSamePositions, *first);
  else if (first == nullptr && second != nullptr)
    weights.emplace_back(kPositions, *second);
  return weights;
}

/// As SamProcessor.save_pretrained() writes it.
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
  if (found.is_array() && std::equal(found.begin(), found.end(), expected.begin(), expected.end(), same))
    return;
  throw IoError(
      path,
      std::string(key) + ": expected " + nlohmann::json(expected).dump() + ", got " +
          found.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace).substr(0, 60));
}

/// A model that saw other colours than data::SamProcessor gives it would be used, and written again, wrongly.
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

/// throws  IoError naming the first that cannot be a weight
void check_types(const train::StateDict& weights, const std::filesystem::path& source) {
  for (const auto& [name, tensor] : weights)
    if (!tensor.is_floating_point())
      throw IoError(source, "its tensor \"" + name + "\" is of type " + c10::toString(tensor.scalar_type()) +
                                ", expected floating-point numbers");
}

}  // namespace

models::Sam read_sam(const std::filesystem::path& path) {
  const auto files = train::find_model_files(path);
  check_processor(files.config.parent_path());
  models::Sam model(models::read_sam_config(files.config));
  load_sam_weights(*model, files.weights);
  return model;
}

void load_sam_weights(models::SamImpl& model, const std::filesystem::path& weights) {
  const auto read = train::read_weights(weights);
  check_types(read, weights);
  train::load_weights(model, with_both_names(read, weights), weights);
}

void write_sam(const std::filesystem::path& folder, const models::SamImpl& model) {
  train::StateDict weights;
  for (const auto& item : train::state_dict(model))
    weights.emplace_back(item.key().toStringRef(), item.value().toTensor());
  write_sam(folder, model.config(), weights);
}

void write_sam(const std::filesystem::path& folder, const models::SamConfig& config,
               const train::StateDict& weights) {
  auto written = with_both_names(weights, folder);
  for (auto& [name, tensor] : written)  // under both names, as in released files: every release reads that
    if (name == kSamePositions) tensor = tensor.clone();
  train::write_model_folder(
      folder, written,
      {{"config.json", models::to_json(config)},
       {"preprocessor_config.json", processor_json(config.vision.image_size, config.mask_size())}});
}

}  // namespace ddprun::worker
