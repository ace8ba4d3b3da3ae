// SAM against transformers' (scripts/golden_sam.py), in single and in double precision.
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

#include <ddprun/serialize/safetensors.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/ddp/parity_models.h"
#include "tests/worker/sam/sam_support.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr const char* kShapes[] = {"window_padding", "windows", "plain"};

/// floor: a gradient's error is compared with the gradient's own largest element, or with this part of the
/// largest of all gradients where that is more. A key's bias needs one: a softmax does not feel it, so that
/// its gradient is nothing but rounding. In double all others stand by themselves, the smallest is 4e-4 of
/// the largest; in single precision rounding that grew on the way through the layers comes close to the
/// tolerance for some of them.
struct Exactness {
  torch::Dtype dtype;
  double tolerance, floor;
};
constexpr Exactness kExactness[] = {{torch::kFloat, 1e-5, 0.25}, {torch::kDouble, 1e-10, 1e-5}};

/// What scripts/golden_sam.py wrote of one shape.
struct ModelGolden {
  std::map<std::string, torch::Tensor> tensors;
  nlohmann::json config, parameters, cases;
};

ModelGolden read_shape(const std::string& shape) {
  const auto folder = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "sam_model";
  const auto file = serialize::read_safetensors(folder / (shape + ".safetensors"));
  const auto note = nlohmann::json::parse(file.metadata.at("golden"));
  return {{file.tensors.begin(), file.tensors.end()}, note["config"], note["parameters"], note["cases"]};
}

double largest(const torch::Tensor& x) { return x.abs().max().item<double>(); }

/// least_scale: what errors are compared with where the largest expected element is smaller
void check_tensor(const std::string& name, const torch::Tensor& found, const torch::Tensor& expected,
                  double tolerance, double least_scale = 0) {
  CAPTURE(name);
  REQUIRE(found.sizes() == expected.sizes());
  const double scale = std::max(largest(expected), least_scale);
  CHECK(largest(found.detach().to(torch::kDouble) - expected) <= tolerance * scale);
}

void check_stage(const ModelGolden& golden, const std::string& name, const torch::Tensor& found,
                 double tolerance) {
  check_tensor(name, found, golden.tensors.at(name), tolerance);
}

/// Norm and the product with a vector by a formula, as the script has it.
torch::Tensor digest(const std::string& name, const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kDouble).flatten();
  return torch::stack({flat.norm(), flat.dot(formula("probe " + name, flat.sizes()))});
}

/// The module of that name, which must be one of this type.
template <typename Holder>
auto& part(const sam::Sam& model, const std::string& name) {
  auto* found = model->named_modules()[name]->template as<Holder>();
  REQUIRE(found != nullptr);
  return *found;
}

/// [..., grid * grid, C] as transformers has it: [B, C, grid, grid].
torch::Tensor channels_first(const torch::Tensor& x, std::int64_t grid) {
  return x.transpose(-1, -2).reshape({-1, x.size(-1), grid, grid});
}

/// The encoder's stages one by one; returns its output.
torch::Tensor check_encoder(sam::Sam& model, const torch::Tensor& image, const ModelGolden& golden,
                            double tolerance) {
  auto x = part<sam::SamPatchEmbeddings>(model, "vision_encoder.patch_embed").forward(image);
  check_stage(golden, "vision_encoder.patch_embed 0", x, tolerance);
  const auto parameters = model->named_parameters();
  if (const auto* positions = parameters.find("vision_encoder.pos_embed")) x = x + *positions;
  for (std::int64_t i = 0; i < model->config().vision.num_hidden_layers; ++i) {
    const auto name = "vision_encoder.layers." + std::to_string(i);
    x = part<sam::SamVisionLayer>(model, name).forward(x);
    check_stage(golden, name + " 0", x, tolerance);
  }
  x = part<sam::SamVisionNeck>(model, "vision_encoder.neck").forward(x).permute({0, 3, 1, 2});
  check_stage(golden, "vision_encoder.neck 0", x, tolerance);
  return x;
}

void check_decoder(sam::Sam& model, const torch::Tensor& embeddings, const sam::SamPrompts& prompts,
                   const ModelGolden& golden, double tolerance) {
  auto& encoder = part<sam::SamPromptEncoder>(model, "prompt_encoder");
  const auto sparse = encoder.sparse(prompts), dense = encoder.dense(prompts);
  const auto grid = model->config().vision.grid();
  check_stage(golden, "prompt_encoder 0", sparse, tolerance);
  check_stage(golden, "prompt_encoder 1", channels_first(dense, grid), tolerance);
  const auto positions = part<sam::SamPositionalEmbedding>(model, "shared_image_embedding").of_grid(grid);
  check_stage(golden, "positions", channels_first(positions, grid), tolerance);
  const auto parameters = model->named_parameters();
  const auto own = torch::cat(
      {parameters["mask_decoder.iou_token.weight"], parameters["mask_decoder.mask_tokens.weight"]});
  const auto tokens = torch::cat({own.expand({sparse.size(0), sparse.size(1), -1, -1}), sparse}, 2);
  const auto image = embeddings.flatten(2).transpose(1, 2).unsqueeze(1) + dense;
  const auto [found, seen] =
      part<sam::SamTwoWayTransformer>(model, "mask_decoder.transformer").forward(tokens, image, positions);
  check_stage(golden, "mask_decoder.transformer 0", found, tolerance);
  check_stage(golden, "mask_decoder.transformer 1", seen.flatten(0, 1).unsqueeze(1), tolerance);
}

/// Every gradient of transformers' model is one here, and the other way round.
///
/// expected  all gradients, one after the other; or of each its digest
void check_gradients(sam::Sam& model, const nlohmann::json& names, const torch::Tensor& expected,
                     const Exactness& exact) {
  auto tensors = model->named_parameters();
  tensors.insert(kSamPositions, model->named_buffers()[kSamPositions]);
  REQUIRE(tensors.size() == names.size());
  const double least_scale = exact.floor * largest(expected);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i];
    CAPTURE(name);
    REQUIRE(tensors.contains(name));
    auto gradient = tensors[name].grad();
    if (!gradient.defined()) gradient = torch::zeros_like(tensors[name]);
    if (expected.dim() == 2) {
      check_tensor(name, digest(name, gradient), expected[static_cast<std::int64_t>(i)], exact.tolerance,
                   least_scale);
    } else {
      const auto own = expected.narrow(0, begin, gradient.numel()).view_as(gradient);
      check_tensor(name, gradient, own, exact.tolerance, least_scale);
      begin += gradient.numel();
    }
  }
  CHECK((expected.dim() == 2 || begin == expected.numel()));
}

/// The case of that number of the file.
void check_case(sam::Sam& model, const ModelGolden& golden, std::size_t number, const Exactness& exact) {
  const auto& one = golden.cases[number];
  CAPTURE(one["prompts"], one["multimask"]);
  const auto suffix = " " + std::to_string(number);
  const auto input = make_sam_input(model->config(), one["prompts"], exact.dtype);
  const auto [masks, scores] = model->forward(input.image, input.prompts, one["multimask"]);
  check_stage(golden, "masks" + suffix, masks, exact.tolerance);
  check_stage(golden, "scores" + suffix, scores, exact.tolerance);
  const auto loss = (masks * formula("weight of masks", masks.sizes()).to(exact.dtype)).sum() +
                    (scores * formula("weight of scores", scores.sizes()).to(exact.dtype)).sum();
  loss.backward();
  check_gradients(model, golden.parameters, golden.tensors.at("gradients" + suffix), exact);
  model->zero_grad();
  model->named_buffers()[kSamPositions].mutable_grad() = torch::Tensor();
}

}  // namespace

TEST_CASE("every stage of SAM gives what transformers' gives", "[sam]") {
  const std::string shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const auto exact = GENERATE(from_range(std::begin(kExactness), std::end(kExactness)));
  CAPTURE(shape, exact.tolerance);
  const auto golden = read_shape(shape);
  auto model = make_formula_sam(golden.config);
  model->to(exact.dtype);
  const torch::NoGradGuard no_grad;
  const auto input = make_sam_input(model->config(), "points masks", exact.dtype);
  const auto embeddings = check_encoder(model, input.image, golden, exact.tolerance);
  CHECK(model->image_embeddings(input.image).equal(embeddings));
  check_decoder(model, embeddings, input.prompts, golden, exact.tolerance);
}

TEST_CASE("SAM's masks, scores and gradients are transformers' for every kind of prompt", "[sam]") {
  const std::string shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  const auto exact = GENERATE(from_range(std::begin(kExactness), std::end(kExactness)));
  const auto golden = read_shape(shape);
  auto model = make_formula_sam(golden.config);
  model->to(exact.dtype);
  model->named_buffers()[kSamPositions].requires_grad_();  // a parameter there
  CAPTURE(shape, exact.tolerance);
  for (std::size_t i = 0; i < golden.cases.size(); ++i) check_case(model, golden, i, exact);
}
