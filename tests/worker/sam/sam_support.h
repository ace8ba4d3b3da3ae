#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "worker/sam/model/sam.h"

namespace ddprun::test {

inline const char* const kSamPositions = "shared_image_embedding.positional_embedding";

/// The model of a configuration as config.json has it, with weights by the formula of parity_models.h, in
/// double precision.
sam::Sam make_formula_sam(const nlohmann::json& config);

/// A small shape with all that SAM may have.
sam::SamConfig small_sam_config();

/// A new model of that size, with weights drawn from the seed.
sam::Sam small_sam(std::uint64_t seed = 1);

/// Points, and the image that belongs to them.
struct SamInput {
  torch::Tensor image;
  sam::SamPrompts prompts;
};

/// By a formula, as scripts/golden_sam.py's make_inputs(). prompts: "points", "boxes", "masks" or several
SamInput make_sam_input(const sam::SamConfig& config, const std::string& prompts, torch::Dtype dtype);

/// Norm of a - b over the norm of b, in double precision.
double relative_difference(const torch::Tensor& a, const torch::Tensor& b);

}  // namespace ddprun::test
