#include "worker/models/mnist_cnn.h"

namespace ddprun::models {

MnistCnnImpl::MnistCnnImpl(std::optional<double> dropout)
    : conv1_(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3)))),
      conv2_(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3)))),
      dropout1_(register_module("dropout1", torch::nn::Dropout(dropout.value_or(0.25)))),
      dropout2_(register_module("dropout2", torch::nn::Dropout(dropout.value_or(0.5)))),
      fc1_(register_module("fc1", torch::nn::Linear(9216, 128))),
      fc2_(register_module("fc2", torch::nn::Linear(128, 10))) {}

torch::Tensor MnistCnnImpl::forward(const torch::Tensor& image_BCHW) {
  auto x_BCHW = torch::relu(conv1_(image_BCHW));
  x_BCHW = torch::relu(conv2_(x_BCHW));
  x_BCHW = dropout1_(torch::max_pool2d(x_BCHW, 2));
  auto x_BF = torch::relu(fc1_(torch::flatten(x_BCHW, 1)));
  return torch::log_softmax(fc2_(dropout2_(x_BF)), 1);
}

}  // namespace ddprun::models
