// SAM against transformers' (scripts/golden_sam.py), in single and in double precision.
#include <torch/types.h>

#include <cmath>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/worker/parity_models.h"
#include "tests/worker/sam_support.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr const char* kShapes[] = {"window_padding", "windows", "plain"};

struct Exactness {
  torch::Dtype dtype;
  double tolerance;
};
constexpr Exactness kExactness[] = {{torch::kFloat, 1e-5}, {torch::kDouble, 1e-10}};

double dot_with_probe(const std::string& name, const torch::Tensor& tensor) {
  return tensor.flatten().dot(formula("probe " + name, {tensor.numel()})).item<double>();
}

/// digest: norm and product with the probe. least_scale: what errors are compared with where the norm is
/// smaller
void check_probe(const std::string& name, const torch::Tensor& tensor, const nlohmann::json& digest,
                 double tolerance, double least_scale = 0) {
  CAPTURE(name);
  const auto wide = tensor.detach().to(torch::kDouble);
  const double norm = digest[0], scale = std::max(norm, least_scale);
  CHECK(std::abs(wide.norm().item<double>() - norm) <= tolerance * scale);
  CHECK(std::abs(dot_with_probe(name, wide) - digest[1].get<double>()) <= tolerance * scale);
}

/// The module of that name, which must be one of this type.
template <typename Holder>
auto& part(const models::Sam& model, const std::string& name) {
  auto* found = model->named_modules()[name]->template as<Holder>();
  REQUIRE(found != nullptr);
  return *found;
}

/// [B, P, K, C] or [B, K, C] as transformers has them: channels first.
torch::Tensor channels_first(const torch::Tensor& x) { return x.transpose(-1, -2).contiguous(); }

/// The encoder's stages one by one; returns its output.
torch::Tensor check_encoder(models::Sam& model, const torch::Tensor& image, const nlohmann::json& stages,
                            double tolerance) {
  auto x = part<models::SamPatchEmbeddings>(model, "vision_encoder.patch_embed").forward(image);
  check_probe("vision_encoder.patch_embed 0", x, stages["vision_encoder.patch_embed 0"], tolerance);
  const auto parameters = model->named_parameters();
  if (const auto* positions = parameters.find("vision_encoder.pos_embed")) x = x + *positions;
  for (std::int64_t i = 0; i < model->config().vision.num_hidden_layers; ++i) {
    const auto name = "vision_encoder.layers." + std::to_string(i);
    x = part<models::SamVisionLayer>(model, name).forward(x);
    check_probe(name + " 0", x, stages[name + " 0"], tolerance);
  }
  x = part<models::SamVisionNeck>(model, "vision_encoder.neck").forward(x).permute({0, 3, 1, 2});
  check_probe("vision_encoder.neck 0", x, stages["vision_encoder.neck 0"], tolerance);
  return x;
}

void check_decoder(models::Sam& model, const torch::Tensor& embeddings, const models::SamPrompts& prompts,
                   const nlohmann::json& stages, double tolerance) {
  auto& encoder = part<models::SamPromptEncoder>(model, "prompt_encoder");
  const auto sparse = encoder.sparse(prompts), dense = encoder.dense(prompts);
  check_probe("prompt_encoder 0", sparse, stages["prompt_encoder 0"], tolerance);
  check_probe("prompt_encoder 1", channels_first(dense), stages["prompt_encoder 1"], tolerance);
  const auto positions = part<models::SamPositionalEmbedding>(model, "shared_image_embedding")
                             .of_grid(model->config().vision.grid());
  check_probe("positions", channels_first(positions), stages["positions"], tolerance);
  const auto parameters = model->named_parameters();
  const auto own = torch::cat(
      {parameters["mask_decoder.iou_token.weight"], parameters["mask_decoder.mask_tokens.weight"]});
  const auto tokens = torch::cat({own.expand({sparse.size(0), sparse.size(1), -1, -1}), sparse}, 2);
  const auto image = embeddings.flatten(2).transpose(1, 2).unsqueeze(1) + dense;
  const auto [found, seen] =
      part<models::SamTwoWayTransformer>(model, "mask_decoder.transformer").forward(tokens, image, positions);
  check_probe("mask_decoder.transformer 0", found, stages["mask_decoder.transformer 0"], tolerance);
  check_probe("mask_decoder.transformer 1", seen, stages["mask_decoder.transformer 1"], tolerance);
}

double norm_of_all(const nlohmann::json& gradients) {
  double sum = 0;
  for (const auto& digest : gradients) sum += digest[0].get<double>() * digest[0].get<double>();
  return std::sqrt(sum);
}

/// Every gradient of transformers' model is one here, and the other way round.
void check_gradients(models::Sam& model, const nlohmann::json& names, const nlohmann::json& expected,
                     double tolerance) {
  auto tensors = model->named_parameters();
  tensors.insert(kSamPositions, model->named_buffers()[kSamPositions]);
  CHECK(tensors.size() == names.size());
  // Some are nothing but rounding, as that of a key's bias, which a softmax does not feel.
  const double least_scale = 0.05 * norm_of_all(expected);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i];
    CAPTURE(name);
    REQUIRE(tensors.contains(name));
    const auto gradient = tensors[name].grad();
    check_probe(name, gradient.defined() ? gradient : torch::zeros_like(tensors[name]), expected[i],
                tolerance, least_scale);
  }
}

void check_case(models::Sam& model, const nlohmann::json& golden, const nlohmann::json& one,
                const Exactness& exact) {
  const auto input = make_sam_input(model->config(), one["prompts"], exact.dtype);
  const auto [masks, scores] = model->forward(input.image, input.prompts, one["multimask"]);
  REQUIRE(masks.sizes().vec() == one["shape"].get<std::vector<std::int64_t>>());
  check_probe("masks", masks, one["masks"], exact.tolerance);
  check_probe("scores", scores, one["scores"], exact.tolerance);
  const auto loss = (masks * formula("weight of masks", masks.sizes()).to(exact.dtype)).sum() +
                    (scores * formula("weight of scores", scores.sizes()).to(exact.dtype)).sum();
  loss.backward();
  check_gradients(model, golden["parameters"], one["gradients"], exact.tolerance);
  model->zero_grad();
  model->named_buffers()[kSamPositions].mutable_grad() = torch::Tensor();
}

}  // namespace

TEST_CASE("every stage of SAM gives what transformers' gives", "[sam]") {
  const std::string shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const auto exact = GENERATE(from_range(std::begin(kExactness), std::end(kExactness)));
  CAPTURE(shape, exact.tolerance);
  const auto golden = read_golden("sam_model/" + shape + ".json");
  auto model = make_formula_sam(golden["config"]);
  model->to(exact.dtype);
  const torch::NoGradGuard no_grad;
  const auto input = make_sam_input(model->config(), "points masks", exact.dtype);
  const auto embeddings = check_encoder(model, input.image, golden["stages"], exact.tolerance);
  CHECK(model->image_embeddings(input.image).equal(embeddings));
  check_decoder(model, embeddings, input.prompts, golden["stages"], exact.tolerance);
}

TEST_CASE("SAM's masks, scores and gradients are transformers' for every kind of prompt", "[sam]") {
  const std::string shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const auto exact = GENERATE(from_range(std::begin(kExactness), std::end(kExactness)));
  const auto golden = read_golden("sam_model/" + shape + ".json");
  auto model = make_formula_sam(golden["config"]);
  model->to(exact.dtype);
  model->named_buffers()[kSamPositions].requires_grad_();  // a parameter there
  for (const auto& one : golden["cases"]) {
    CAPTURE(shape, exact.tolerance, one["prompts"], one["multimask"]);
    check_case(model, golden, one, exact);
  }
}
