#include "worker/sam/model/layers.h"

#include <torch/types.h>

namespace ddprun::sam {

torch::Tensor activate(Activation activation, const torch::Tensor& x) {
  return activation == Activation::kGelu ? torch::gelu(x) : torch::relu(x);
}

torch::nn::LayerNorm layer_norm(std::int64_t channels, double eps) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({channels}).eps(eps));
}

SamMlpImpl::SamMlpImpl(std::int64_t channels, std::int64_t hidden, Activation activation)
    : activation_(activation),
      lin1_(register_module("lin1", torch::nn::Linear(channels, hidden))),
      lin2_(register_module("lin2", torch::nn::Linear(hidden, channels))) {}

torch::Tensor SamMlpImpl::forward(const torch::Tensor& x) { return lin2_(activate(activation_, lin1_(x))); }

SamFeedForwardImpl::SamFeedForwardImpl(std::int64_t in, std::int64_t hidden, std::int64_t out,
                                       std::int64_t layers)
    : proj_in_(register_module("proj_in", torch::nn::Linear(in, hidden))),
      proj_out_(register_module("proj_out", torch::nn::Linear(hidden, out))),
      layers_(register_module("layers", torch::nn::ModuleList())) {
  for (std::int64_t i = 2; i < layers; ++i) layers_->push_back(torch::nn::Linear(hidden, hidden));
}

torch::Tensor SamFeedForwardImpl::forward(torch::Tensor x) {
  x = torch::relu(proj_in_(x));
  for (const auto& layer : *layers_) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
  return proj_out_(x);
}

}  // namespace ddprun::sam
