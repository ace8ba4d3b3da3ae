#include "worker/models/classifiers.h"

#include <torch/nn/functional/pooling.h>
#include <torch/nn/init.h>

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

namespace {

torch::nn::Conv2d convolution(int in_channels, int out_channels, int kernel, int stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

torch::nn::Sequential layer(int in_channels, int out_channels, int stride) {
  return torch::nn::Sequential(BasicBlock(in_channels, out_channels, stride),
                               BasicBlock(out_channels, out_channels, 1));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int in_channels, int out_channels, int stride)
    : conv1_(register_module("conv1", convolution(in_channels, out_channels, 3, stride))),
      bn1_(register_module("bn1", BatchNorm(out_channels))),
      conv2_(register_module("conv2", convolution(out_channels, out_channels, 3, 1))),
      bn2_(register_module("bn2", BatchNorm(out_channels))) {
  if (stride != 1 || in_channels != out_channels)
    downsample_ = register_module(
        "downsample",
        torch::nn::Sequential(convolution(in_channels, out_channels, 1, stride), BatchNorm(out_channels)));
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& x_BCHW) {
  const auto y_BCHW = bn1_->forward_relu(conv1_(x_BCHW));
  const auto shortcut = [&] { return downsample_.is_empty() ? x_BCHW : downsample_->forward(x_BCHW); };
  return bn2_->forward_relu(conv2_(y_BCHW), shortcut);
}

ResNet18Impl::ResNet18Impl(int num_classes, Stem stem)
    : stem_(stem),
      conv1_(register_module("conv1", torch::nn::Conv2d(stem == Stem::kImagenet ? convolution(3, 64, 7, 2)
                                                                                : convolution(3, 64, 3, 1)))),
      bn1_(register_module("bn1", BatchNorm(64))),
      layer1_(register_module("layer1", layer(64, 64, 1))),
      layer2_(register_module("layer2", layer(64, 128, 2))),
      layer3_(register_module("layer3", layer(128, 256, 2))),
      layer4_(register_module("layer4", layer(256, 512, 2))),
      fc_(register_module("fc", torch::nn::Linear(512, num_classes))) {
  draw_weights();
}

void ResNet18Impl::draw_weights() {
  for (const auto& module : modules(/*include_self=*/false)) {
    // BatchNorm's weights are already 1 and its biases 0.
    if (const auto* convolution = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

torch::Tensor ResNet18Impl::forward(const torch::Tensor& image_BCHW) {
  auto x_BCHW = bn1_->forward_relu(conv1_(image_BCHW));
  if (stem_ == Stem::kImagenet)
    x_BCHW = torch::max_pool2d(x_BCHW, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (auto* blocks : {&layer1_, &layer2_, &layer3_, &layer4_}) x_BCHW = (*blocks)->forward(x_BCHW);
  return fc_(torch::flatten(torch::adaptive_avg_pool2d(x_BCHW, {1, 1}), 1));
}

}  // namespace ddprun::models
