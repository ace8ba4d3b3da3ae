// The summary of a model: the same FLOPs as torch.utils.flop_counter counts for the same model in Python.
#include <ddprun/train/record/model_summary.h>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <ddprun/common/files.h>
#include <ddprun/data/dataset.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

using namespace ddprun;
using namespace ddprun::train;

namespace {

struct MixedImpl : torch::nn::Module {
  torch::nn::Conv2d down{torch::nn::Conv2dOptions(4, 8, 3).stride(2).padding(1).groups(2)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(8, 6, 2).stride(2).groups(2)};
  torch::nn::Linear head{6, 6}, unused{3, 2};
  MixedImpl() {
    register_module("down", down);
    register_module("norm", norm);
    register_module("up", up);
    register_module("head", head);
    register_module("unused", unused);
    register_module("tied", head);
    norm->weight.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto places = up(norm(down(x)).relu()).flatten(2).transpose(1, 2).unsqueeze(1);  // [B, 1, 256, 6]
    const auto attended =
        at::scaled_dot_product_attention(head(places), places.slice(2, 0, 100), places.slice(2, 0, 100));
    return attended.matmul(attended.transpose(2, 3)).mean({1, 2, 3});
  }
};
TORCH_MODULE(Mixed);

}  // namespace

TEST_CASE("a summary has every layer's shapes, parameters and FLOPs, as PyTorch counts them",
          "[model_summary]") {
  Mixed model;
  Task task;
  task.module = model.ptr();
  task.train_set = std::make_shared<data::TensorDataset>(torch::randn({3, 4, 16, 16}), torch::zeros({3}));
  task.compute_loss = [model](const data::Batch& batch) mutable {
    return BatchResult{model->forward(batch.input)};
  };
  model->train();
  const auto layers = summarize(task);
  CHECK(model->is_training());
  CHECK(model->norm->running_mean.abs().sum().item<float>() == 0);
  REQUIRE(layers.size() == 7);
  CHECK(layers[0].name == "down");
  CHECK(layers[0].type == "Conv2d");
  CHECK(layers[0].input == std::vector<std::int64_t>{1, 4, 16, 16});
  CHECK(layers[0].output == std::vector<std::int64_t>{1, 8, 8, 8});
  CHECK(layers[1].parameters == 16);
  CHECK(layers[1].trainable == 8);
  CHECK(layers[3].output == std::vector<std::int64_t>{1, 1, 256, 6});
  CHECK(layers[4].output.empty());   // unused
  CHECK(layers[5].parameters == 0);  // tied: counted in its first layer
  std::int64_t all = 0;
  std::string of_layers;
  for (const auto& layer : layers) {
    all += layer.flops;
    of_layers += std::to_string(layer.flops) + ",";
  }
  const TempDir dir;
  test::check_python(dir.path(), "torch",
                     R"(
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.head = nn.Linear(6, 6)
    def forward(self, x):
        p = self.up(self.norm(self.down(x)).relu()).flatten(2).transpose(1, 2).unsqueeze(1)
        a = nn.functional.scaled_dot_product_attention(self.head(p), p[:, :, :100], p[:, :, :100])
        return (a @ a.transpose(2, 3)).mean((1, 2, 3))
with FlopCounterMode(display=False) as counter, torch.no_grad(): Mixed().eval()(torch.randn(1, 4, 16, 16))
counts = {k: sum(v.values()) for k, v in counter.get_flop_counts().items()}
ours = [)" + of_layers + R"(]
assert ours[:4] == [counts.get('Mixed.' + n, 0) for n in ('down', 'norm', 'up', 'head')], (ours, counts)
assert sum(ours) == counter.get_total_flops() == )" +
                         std::to_string(all) + ", (ours, counts)");
  const auto text = to_text(layers);
  INFO(text);
  CHECK_THAT(text, test::ContainsSubstring("down    Conv2d           [1, 4, 16, 16]  [1, 8, 8, 8]"));
  CHECK_THAT(text, test::ContainsSubstring("parameters: 320, 312 of them trained"));
}
