#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>

namespace ddprun::test {

struct Layer {
  std::int64_t in = 1, out = 1;
  torch::Dtype dtype = torch::kFloat64;
  int uses = 1;  ///< how often the forward pass applies it in a row; 0: it has no part in it
  bool frozen = false;
};

/// Linear layers with tanh between, each of its own type, as Stack in scripts/make_golden.py.
class LayerStack : public torch::nn::Module {
 public:
  explicit LayerStack(std::vector<Layer> layers, std::uint64_t seed = 1) : layers_(std::move(layers)) {
    torch::manual_seed(seed);
    for (const auto& layer : layers_) {
      torch::nn::Linear linear(layer.in, layer.out);
      linear->to(layer.dtype);
      for (auto& parameter : linear->parameters()) parameter.requires_grad_(!layer.frozen);
      list_->push_back(linear);
    }
    register_module("layers", list_);
  }

  /// x  [B, in of the first layer]
  /// also  a further layer to apply, of those with no use; -1: none
  torch::Tensor forward(torch::Tensor x, int also = -1) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const int uses = layers_[i].uses + (static_cast<int>(i) == also ? 1 : 0);
      for (int use = 0; use < uses; ++use)
        x = list_->ptr<torch::nn::LinearImpl>(i)->forward(x.to(layers_[i].dtype)).tanh();
    }
    return x;
  }

  const std::vector<Layer>& layers() const { return layers_; }

 private:
  std::vector<Layer> layers_;
  torch::nn::ModuleList list_;
};

/// Throws unless both have gradients of the same parameters, and each differs by at most tolerance x its
/// norm.
inline void check_same_gradients(const torch::nn::Module& module, const torch::nn::Module& reference,
                                 double tolerance, const std::string& where = "") {
  const auto expected_all = reference.named_parameters();
  for (const auto& item : module.named_parameters()) {
    const auto gradient = item.value().grad(), expected = expected_all[item.key()].grad();
    const auto what = where + item.key() + "'s gradient ";
    ensure(gradient.defined() == expected.defined(),
           (what + (gradient.defined() ? "is there, though none used it" : "is missing")).c_str());
    if (!gradient.defined()) continue;
    const auto difference = (gradient - expected).to(torch::kFloat64).norm().item<double>();
    const auto norm = expected.to(torch::kFloat64).norm().item<double>();
    ensure(difference <= tolerance * norm + 1e-14,
           (what + "is off by " + std::to_string(difference / norm) + " of its norm").c_str());
  }
}

/// The module's weights, in another of the same kind.
inline void copy_weights(const torch::nn::Module& from, const torch::nn::Module& to) {
  torch::NoGradGuard no_grad;
  const auto source = from.parameters();
  auto target = to.parameters();
  for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

}  // namespace ddprun::test
