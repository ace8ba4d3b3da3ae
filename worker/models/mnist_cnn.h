#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <optional>

namespace ddprun::models {

// Shapes: B batch, C channels, H height, W width, F features, K classes.

/// The CNN of PyTorch's MNIST example, with its parameter names: two 3x3 convolutions, 2x2 max-pooling, two
/// linear layers, log-softmax. 1,199,882 parameters.
class MnistCnnImpl : public torch::nn::Module {
 public:
  /// dropout  probability of both dropout layers; nullopt: 0.25 after pooling and 0.5 before the last layer
  explicit MnistCnnImpl(std::optional<double> dropout = std::nullopt);

  /// image_BCHW  float [B, 1, 28, 28]
  /// returns     log-probabilities, float [B, 10]
  torch::Tensor forward(const torch::Tensor& image_BCHW);

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Dropout dropout1_, dropout2_;
  torch::nn::Linear fc1_, fc2_;
};
TORCH_MODULE(MnistCnn);

}  // namespace ddprun::models
