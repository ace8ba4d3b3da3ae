#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "worker/sam/model/sam_config.h"

// Shared parts of SAM. Shapes: B images, P prompts per image, N tokens, C channels, H rows and W columns (of
// patches, except for pictures and masks), E heads, D channels per head.

namespace ddprun::sam {

torch::Tensor activate(Activation activation, const torch::Tensor& x);

/// LayerNorm over the last dimension.
torch::nn::LayerNorm layer_norm(std::int64_t channels, double eps);

/// A linear layer, an activation function, a linear layer.
class SamMlpImpl : public torch::nn::Module {
 public:
  SamMlpImpl(std::int64_t channels, std::int64_t hidden, Activation activation);

  /// x        float [..., channels]
  /// returns  the same shape
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear lin1_, lin2_;
};
TORCH_MODULE(SamMlp);

/// Linear layers with ReLU between them.
class SamFeedForwardImpl : public torch::nn::Module {
 public:
  SamFeedForwardImpl(std::int64_t in, std::int64_t hidden, std::int64_t out, std::int64_t layers);

  /// x        float [..., in]
  /// returns  float [..., out]
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Linear proj_in_, proj_out_;
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(SamFeedForward);

}  // namespace ddprun::sam
