#include "tests/worker/ddprun/ddp/parity_models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <stdexcept>

#include "worker/models/classifiers.h"

namespace ddprun::test {
namespace {

/// splitmix64 of FNV-1a of the name, plus the index.
std::uint64_t hash_of(const std::string& name, std::uint64_t index) {
  std::uint64_t seed = 0xCBF29CE484222325;
  for (const char byte : name) seed = (seed ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  std::uint64_t z = seed + index + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// A layer used twice, and two branches of which either may be unused.
struct BranchedImpl : torch::nn::Module {
  BranchedImpl() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("trunk", trunk);
    register_module("shared", shared);
    register_module("a", a);
    register_module("b", b);
  }

  torch::Tensor forward(const torch::Tensor& images, const std::string& branches) {
    auto x = torch::max_pool2d(torch::relu(bn(conv(images))), 2);
    x = torch::relu(trunk(torch::flatten(x, 1)));
    x = torch::relu(shared(torch::relu(shared(x))));
    if (branches == "a") return a(x);
    return branches == "b" ? b(x) : a(x) + b(x);
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)};
  models::BatchNorm bn{8};
  torch::nn::Linear trunk{128, 32}, shared{32, 32}, a{32, 10}, b{32, 10};
};
TORCH_MODULE(Branched);

}  // namespace

torch::Tensor formula(const std::string& name, torch::IntArrayRef shape, std::uint64_t begin) {
  auto values = torch::empty(shape, torch::kFloat64);
  auto* to = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i)
    to[i] = static_cast<double>(hash_of(name, begin + static_cast<std::uint64_t>(i)) >> 40) * 0x1p-24 - 0.5;
  return values;
}

torch::Tensor formula_labels(std::uint64_t first, std::int64_t count) {
  auto labels = torch::empty({count}, torch::kInt64);
  for (std::int64_t i = 0; i < count; ++i)
    labels[i] = static_cast<std::int64_t>(hash_of("label", first + static_cast<std::uint64_t>(i)) % 10);
  return labels;
}

void fill_by_formula(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    auto values = formula(item.key(), item.value().sizes());
    if (values.dim() > 1) {
      const auto fan_in = static_cast<double>(values.numel() / values.size(0));
      values *= std::exp2(std::nearbyint(std::log2(2 * std::sqrt(6 / fan_in))));
    } else {
      const bool norm = item.key().size() >= 6 && item.key().compare(item.key().size() - 6, 6, "weight") == 0;
      values = values / 8 + (norm ? 1 : 0);
    }
    item.value().copy_(values);
  }
}

ParityModel make_parity_model(const std::string& name) {
  using torch::nn::functional::cross_entropy;
  ParityModel result;
  if (name == "cnn") {
    models::MnistCnn model(0.0);
    result = {model.ptr(), [model](const auto& images, const auto& labels, const std::string&) mutable {
                return torch::nll_loss(model->forward(images), labels);
              }};
  } else if (name == "resnet18") {
    models::ResNet18 model(10);
    result = {model.ptr(), [model](const auto& images, const auto& labels, const std::string&) mutable {
                return cross_entropy(model->forward(images), labels);
              }};
  } else if (name == "branched") {
    Branched model;
    result = {model.ptr(),
              [model](const auto& images, const auto& labels, const std::string& branches) mutable {
                return cross_entropy(model->forward(images, branches), labels);
              }};
  } else {
    throw std::invalid_argument("no model " + name);
  }
  fill_by_formula(*result.module);
  return result;
}

}  // namespace ddprun::test
