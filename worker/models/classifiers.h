#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include <ddprun/ddp/sync_batch_norm.h>

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

// Shapes: B batch, C channels, H height, W width, K classes.

/// Plain batch norm until ddp::convert_sync_batchnorm().
using BatchNorm = ddp::SyncBatchNorm;

/// Two 3x3 convolutions and a shortcut, with torchvision's parameter names. The shortcut is a 1x1 convolution
/// (downsample) where the stride or the number of channels changes.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int in_channels, int out_channels, int stride);

  /// x_BCHW   float [B, in_channels, H, W]
  /// returns  float [B, out_channels, H / stride, W / stride], rounded up
  torch::Tensor forward(const torch::Tensor& x_BCHW);

 private:
  torch::nn::Conv2d conv1_;
  BatchNorm bn1_;
  torch::nn::Conv2d conv2_;
  BatchNorm bn2_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

/// The layers before the first block: for 224 x 224 pictures a 7x7 convolution and a 3x3 max-pooling, each of
/// stride 2; for 32 x 32 pictures a size-preserving 3x3 convolution.
enum class Stem { kImagenet, kCifar };

/// ResNet-18 (He et al. 2015, table 1), with torchvision's parameter names and initial weights. 11,181,642
/// parameters with 10 classes; 11,173,962 with the CIFAR stem.
class ResNet18Impl : public torch::nn::Module {
 public:
  explicit ResNet18Impl(int num_classes = 1000, Stem stem = Stem::kImagenet);

  /// image_BCHW  float [B, 3, H, W], of any size
  /// returns     logits, float [B, num_classes]
  torch::Tensor forward(const torch::Tensor& image_BCHW);

 private:
  void draw_weights();

  Stem stem_;
  torch::nn::Conv2d conv1_;
  BatchNorm bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet18);

}  // namespace ddprun::models
