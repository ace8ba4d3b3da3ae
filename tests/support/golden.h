#pragma once

#include <torch/types.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::test {

/// The JSON file of that name that scripts/make_golden.py wrote with PyTorch.
nlohmann::json read_golden(const std::string& name);

/// Checks shape, sum, norm and fifty values of a tensor against a digest of the script, each to
/// tolerance x the tensor's norm (sum: x norm x sqrt(n)). Fails the test case with the difference otherwise.
void check_digest(const torch::Tensor& tensor, const nlohmann::json& digest, double tolerance);

}  // namespace ddprun::test
