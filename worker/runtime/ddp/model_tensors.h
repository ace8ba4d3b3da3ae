#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace ddprun::ddp {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What the ranks share of a model: its parameters and buffers by name, read at each call. Converts
/// implicitly from a torch::nn::Module, which must outlive it, and from a torch::jit::Module (TorchScript).
struct ModelTensors {
  using List = std::function<std::vector<NamedTensor>()>;

  ModelTensors(const torch::nn::Module& module);   // NOLINT(google-explicit-constructor)
  ModelTensors(const torch::jit::Module& module);  // NOLINT(google-explicit-constructor)
  ModelTensors(std::string name, List parameters, List buffers)
      : name(std::move(name)), parameters(std::move(parameters)), buffers(std::move(buffers)) {}

  std::string name;
  List parameters, buffers;
  std::vector<at::Tensor> sparse = {};  ///< parameters whose gradients are sparse
};

}  // namespace ddprun::ddp
