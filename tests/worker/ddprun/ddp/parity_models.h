#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace ddprun::test {

// The models, weights and samples of scripts/parity_models.py: the same values in Python, from integer
// hashes.

/// Values begin, begin + 1, ... of the stream of that name: double, in [-0.5, 0.5), exact in single
/// precision.
torch::Tensor formula(const std::string& name, torch::IntArrayRef shape, std::uint64_t begin = 0);

/// Labels 0 to 9 of the samples first, ..., first + count - 1.
torch::Tensor formula_labels(std::uint64_t first, std::int64_t count);

/// Every parameter's values from its name.
void fill_by_formula(const torch::nn::Module& module);

struct ParityModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Mean loss of images and labels; branches: which of "a" and "b" the branched model uses.
  std::function<torch::Tensor(const torch::Tensor& images, const torch::Tensor& labels,
                              const std::string& branches)>
      loss;
};

/// "cnn", "resnet18" or "branched", with weights by the formula.
ParityModel make_parity_model(const std::string& name);

}  // namespace ddprun::test
