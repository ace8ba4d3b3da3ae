#pragma once

#include <torch/types.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::test {

/// A JSON file that scripts/make_golden.py wrote with PyTorch.
nlohmann::json read_golden(const std::string& name);

/// Checks a tensor's shape, sum, norm and fifty values against a digest from that script, each to tolerance x
/// the tensor's norm (sum: x norm x sqrt(n)).
void check_digest(const torch::Tensor& tensor, const nlohmann::json& digest, double tolerance);

}  // namespace ddprun::test
