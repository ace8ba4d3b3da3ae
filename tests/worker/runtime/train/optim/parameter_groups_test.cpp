// Parameter groups: the same training as PyTorch's with the same groups, and what cannot be grouped.
#include <ddprun/train/optim/parameter_groups.h>

#include <ATen/core/Dict.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

using namespace ddprun;
using namespace ddprun::train;

namespace {

/// head(blocks(norm(stem(x)))), whose parameters are in the order of their use.
struct BlocksImpl : torch::nn::Module {
  torch::nn::Linear stem{6, 5}, head{5, 1};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({5})};
  torch::nn::Sequential blocks{torch::nn::Linear(5, 5),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})),
                               torch::nn::Linear(5, 5)};
  BlocksImpl() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("blocks", blocks);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(blocks->forward(norm(stem(x).tanh())).tanh()); }
};
TORCH_MODULE(Blocks);

const std::string kModel = R"(
import torch
from torch import nn
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 1)
        self.blocks = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5))
    def forward(self, x): return self.head(self.blocks(self.norm(self.stem(x).tanh())).tanh())
)";

/// 12 steps on 12 batches, with groups and one-cycle.
void train_ours(const std::filesystem::path& folder) {
  const auto data = serialize::read_pt(folder / "data.pt").toGenericDict();
  Blocks model;
  StateDict weights;
  for (const auto& item : data.at("model").toGenericDict())
    weights.emplace_back(item.key().toStringRef(), item.value().toTensor());
  load_weights(*model, weights, "data.pt");
  OptimOptions options;
  options.optimizer = {.kind = OptimizerKind::kAdamW, .lr = 0.02, .weight_decay = 0.3};
  options.schedule = LrScheduleKind::kOneCycle;
  options.grouping = {.norm_weight_decay = 0.0, .bias_weight_decay = 0.1, .layer_decay = 0.7};
  const auto groups = optimizer_groups(*model, group_parameters(*model, options.grouping), options.optimizer);
  auto schedule = schedule_options(options, 0.02, {.steps_per_epoch = 12}, MonitorMode::kMin);
  for (const auto& group : groups) schedule.one_cycle.lr_factors.push_back(group.options().get_lr() / 0.02);
  Optimization optimization({make_optimizer(options.optimizer, groups), nullptr, nullptr}, options,
                            Precision::k32, torch::kCPU, schedule);
  for (std::int64_t i = 0; i < 12; ++i) {
    optimization.optimizer().zero_grad();
    (model->forward(data.at("x").toTensor()[i]) - data.at("y").toTensor()[i]).square().mean().backward();
    optimization.optimizer_step();
  }
  auto result = make_state();
  result.insert("model", state_dict(*model));
  result.insert("optimizer", optimizer_state_dict(optimization.optimizer()));
  serialize::write_pt(folder / "ours.pt", result);
}

}  // namespace

TEST_CASE("groups by layer, norms and biases train as the same groups in PyTorch", "[parameter_groups]") {
  const TempDir dir;
  test::check_python(dir.path(), "torch", kModel + R"(
torch.manual_seed(1)
x = torch.randn(12, 8, 6)
torch.save({'model': dict(Blocks().state_dict()), 'x': x, 'y': x.sum(2, keepdim=True).sin()}, 'data.pt'))");
  train_ours(dir.path());
  test::check_python(dir.path(), "torch", kModel + R"(
data, ours = torch.load('data.pt'), torch.load('ours.pt')
model = Blocks()
model.load_state_dict(data['model'])
groups = []
for factor, layer in enumerate([model.head, *reversed(model.blocks), model.norm, model.stem]):
    lr = 0.02 * 0.7 ** factor
    if isinstance(layer, nn.LayerNorm):
        groups += [dict(params=list(layer.parameters()), lr=lr, weight_decay=0.0)]
    else:
        groups += [dict(params=[layer.weight], lr=lr), dict(params=[layer.bias], lr=lr, weight_decay=0.1)]
optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g['lr'] for g in groups], total_steps=12)
for i in range(12):
    optimizer.zero_grad()
    ((model(data['x'][i]) - data['y'][i]) ** 2).mean().backward()
    optimizer.step()
    if i < 11: schedule.step()
for name, value in model.state_dict().items():
    torch.testing.assert_close(ours['model'][name], value, rtol=1e-4, atol=1e-6)
for mine, group in zip(ours['optimizer']['param_groups'], groups, strict=True):
    assert mine['weight_decay'] == group.get('weight_decay', 0.3), (mine, group)
    assert len(mine['params']) == len(group['params'])
torch.optim.AdamW(groups).load_state_dict(ours['optimizer']))");
}

TEST_CASE("parameters that no group names have the optimizer's settings, and none is in two groups",
          "[parameter_groups]") {
  Blocks model;
  const OptimizerSettings settings{.kind = OptimizerKind::kSgd, .lr = 0.5, .weight_decay = 0.25};
  const auto groups = optimizer_groups(*model, {{{"head.bias"}, 0.5, 0.0}}, settings);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].params().size() == 11);
  CHECK(groups[1].params()[0].is_same(model->head->bias));
  const auto& own = dynamic_cast<const torch::optim::SGDOptions&>(groups[1].options());
  CHECK(own.lr() == 0.25);
  CHECK(own.weight_decay() == 0);
  CHECK_THROWS_WITH(optimizer_groups(*model, {{{"head.bias"}}, {{"head.bias"}}}, settings),
                    "parameter groups: expected parameters of the module, each once, got 'head.bias'");
  CHECK_THROWS_WITH(optimizer_groups(*model, {{{"head.no"}}}, settings),
                    "parameter groups: expected parameters of the module, each once, got 'head.no'");
}
