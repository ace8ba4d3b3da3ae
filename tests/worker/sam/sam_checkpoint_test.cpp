#include "worker/sam/sam_model.h"

#include <torch/types.h>

#include <filesystem>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/worker/sam/sam_support.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using sam::Sam;

namespace {

constexpr const char* kSamePositions = "prompt_encoder.shared_embedding.positional_embedding";

bool same_weights(const Sam& a, const Sam& b) {
  for (const auto& item : a->named_parameters())
    if (!item.value().equal(b->named_parameters()[item.key()])) return false;
  return a->named_buffers()[kSamPositions].equal(b->named_buffers()[kSamPositions]);
}

train::StateDict weights_of(const Sam& model) {
  train::StateDict weights;
  for (const auto& item : train::state_dict(*model))
    weights.emplace_back(item.key().toStringRef(), item.value().toTensor().clone());
  return weights;
}

void drop(train::StateDict& weights, const std::string& name) {
  std::erase_if(weights, [&](const auto& item) { return item.first == name; });
}

torch::Tensor masks_of(Sam& model) {
  const torch::NoGradGuard no_grad;
  const auto input = make_sam_input(model->config(), "points boxes masks", torch::kFloat);
  return model->forward(input.image, input.prompts).masks;
}

void write_inputs(const fs::path& path, const sam::SamConfig& config) {
  const auto [image, prompts] = make_sam_input(config, "points boxes masks", torch::kFloat);
  serialize::write_safetensors(path, {{"pixel_values", image},
                                      {"input_points", prompts.points},
                                      {"input_labels", prompts.labels},
                                      {"input_boxes", prompts.boxes},
                                      {"input_masks", prompts.masks}});
}

}  // namespace

TEST_CASE("a SAM comes back from the folder that it was written to", "[sam_checkpoint]") {
  const TempDir folder;
  auto model = small_sam(3);
  sam::write_sam(folder.path() / "new" / "model", *model);
  auto again = sam::read_sam(folder.path() / "new" / "model");
  CHECK(same_weights(again, model));
  CHECK(masks_of(again).equal(masks_of(model)));
  CHECK(same_weights(sam::read_sam(folder.path() / "new" / "model" / "model.safetensors"), model));
}

TEST_CASE("a SAM is read from pytorch_model.bin, in half precision and with one name for its positions",
          "[sam_checkpoint]") {
  const TempDir folder;
  auto model = small_sam(3);
  write_file_atomic(folder.path() / "config.json", to_json(model->config()));
  auto weights = weights_of(model);
  drop(weights, GENERATE(true, false) ? kSamePositions : kSamPositions);
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : weights) dict.insert(name, tensor.to(torch::kHalf));
  serialize::write_pt(folder.path() / "pytorch_model.bin", dict);
  const auto found = sam::read_sam(folder.path());
  CHECK(found->named_buffers()[kSamPositions].equal(
      model->named_buffers()[kSamPositions].to(torch::kHalf).to(torch::kFloat)));
  CHECK(found->parameters().front().scalar_type() == torch::kFloat);
}

TEST_CASE("weights that are not the model's are refused, naming file and tensor", "[sam_checkpoint]") {
  const TempDir folder;
  const auto path = folder.path() / "model.safetensors";
  const auto model = small_sam(3);
  write_file_atomic(folder.path() / "config.json", to_json(model->config()));
  auto weights = weights_of(model);
  const auto refused = [&](const std::string& expected) {
    serialize::write_safetensors(path, weights);
    CHECK_THROWS_AS(sam::read_sam(folder.path()), IoError);
    CHECK_THROWS_WITH(sam::read_sam(folder.path()),
                      ContainsSubstring("model.safetensors: ") && ContainsSubstring(expected));
  };
  SECTION("missing") {
    drop(weights, "vision_encoder.layers.1.attn.rel_pos_w");
    refused(R"(missing "vision_encoder.layers.1.attn.rel_pos_w" [9, 8])");
  }
  SECTION("unexpected") {
    weights.emplace_back("vision_encoder.layers.2.attn.rel_pos_w", torch::zeros({2}));
    refused(R"(unexpected "vision_encoder.layers.2.attn.rel_pos_w" [2])");
  }
  SECTION("misshapen") {
    for (auto& [name, tensor] : weights)
      if (name == "vision_encoder.pos_embed") tensor = torch::zeros({1, 6, 5, 16});
    refused(R"("vision_encoder.pos_embed" [1, 6, 5, 16], expected [1, 5, 5, 16])");
  }
  SECTION("whole numbers") {
    for (auto& [name, tensor] : weights)
      if (name == "vision_encoder.pos_embed") tensor = tensor.to(torch::kInt32);
    refused(R"(its tensor "vision_encoder.pos_embed" is of type Int, expected floating-point numbers)");
  }
  SECTION("one tensor that is two") {
    for (auto& [name, tensor] : weights)
      if (name == kSamePositions) tensor = tensor + 1;
    refused("positional_embedding\" differ, expected one tensor under both names");
    for (auto& [name, tensor] : weights)
      if (name == kSamePositions) tensor = tensor.to(torch::kHalf);
    refused("positional_embedding\" differ, expected one tensor under both names");
  }
}

TEST_CASE("a path without a model is refused", "[sam_checkpoint]") {
  const TempDir folder;
  const auto refused = [](const fs::path& path, const std::string& expected) {
    CHECK_THROWS_AS(sam::read_sam(path), IoError);
    CHECK_THROWS_WITH(sam::read_sam(path), ContainsSubstring(expected));
  };
  refused(folder.path() / "nothing", "does not exist, expected a model folder or a weights file");
  refused(folder.path(), "holds no model, expected model.safetensors or pytorch_model.bin in it");
  write_file_atomic(folder.path() / "model.safetensors.index.json", "{}");
  refused(folder.path(), "has the weights in several files, expected one");
  serialize::write_safetensors(folder.path() / "model.safetensors", {{"a", torch::zeros({1})}});
  refused(folder.path(), "config.json: does not exist, expected it beside model.safetensors");
  write_file_atomic(folder.path() / "last.pt", "");
  refused(folder.path() / "last.pt",
          "config.json: does not exist, expected it beside last.pt; for a run, give its folder, or one "
          "that `worker export CHECKPOINT FOLDER` writes");
}

TEST_CASE("a SAM that saw other colours than the processor's is refused", "[sam_checkpoint]") {
  const TempDir folder;
  sam::write_sam(folder.path(), *small_sam(3));
  const auto refused = [&](const char* name, const std::string& text, const std::string& expected) {
    write_file_atomic(folder.path() / name, text);
    CHECK_THROWS_AS(sam::read_sam(folder.path()), IoError);
    CHECK_THROWS_WITH(sam::read_sam(folder.path()), ContainsSubstring(name + (": " + expected)));
    write_file_atomic(folder.path() / name, "{}");
    CHECK_NOTHROW(sam::read_sam(folder.path()));
  };
  const auto* older = "preprocessor_config.json";
  refused(older, R"({"image_mean": [0.5, 0.5, 0.5]})",
          "image_mean: expected [0.485,0.456,0.406], got [0.5,0.5,0.5]");
  refused(older, R"({"image_std": [0.229, 0.224]})",
          "image_std: expected [0.229,0.224,0.225], got [0.229,0.224]");
  refused(older, R"({"image_std": "x"})", "image_std: expected [0.229,0.224,0.225], got \"x\"");
  refused(older, "[", "is not JSON, expected what SamProcessor.save_pretrained() writes");
  refused("processor_config.json", R"({"image_processor": {"image_std": [1, 1, 1]}})", "image_std: expected");
}

TEST_CASE("transformers reads a written SAM, and a SAM that transformers saved is read", "[sam_checkpoint]") {
  const TempDir folder;
  auto model = small_sam(3);
  sam::write_sam(folder.path() / "ours", *model);
  write_inputs(folder.path() / "inputs.safetensors", model->config());
  serialize::write_safetensors(folder.path() / "masks.safetensors", {{"masks", masks_of(model)}});
  check_python(folder.path(), "transformers", R"(
import torch
from safetensors.torch import load_file, save_file
from transformers import SamModel, SamProcessor
inputs = load_file("inputs.safetensors")
model, info = SamModel.from_pretrained("ours", output_loading_info=True)
assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
shared = model.shared_image_embedding.positional_embedding
assert torch.equal(shared, model.prompt_encoder.shared_embedding.positional_embedding)
masks = model(**inputs).pred_masks
expected = load_file("masks.safetensors")["masks"]
assert (masks - expected).norm() <= 1e-5 * expected.norm(), (masks - expected).norm()
processor = SamProcessor.from_pretrained("ours")
found = processor(images=torch.zeros(3, 50, 20, dtype=torch.uint8).numpy(), return_tensors="pt")
assert found["pixel_values"].shape == (1, 3, 40, 40) and found["reshaped_input_sizes"].tolist() == [[40, 16]]
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(1.5)
model.save_pretrained("theirs")
save_file({"masks": model(**inputs).pred_masks.detach().contiguous()}, "new_masks.safetensors")
)");
  auto theirs = sam::read_sam(folder.path() / "theirs");
  const auto expected =
      serialize::read_safetensors(folder.path() / "new_masks.safetensors").tensors.at(0).second;
  CHECK((masks_of(theirs) - expected).norm().item<double>() <= 1e-5 * expected.norm().item<double>());
}
