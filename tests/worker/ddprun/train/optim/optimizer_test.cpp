// Parameter groups: the same training as PyTorch's with the same groups, and what cannot be grouped.
#include <ddprun/train/optim/optimizer.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "worker/models/classifiers.h"

using namespace ddprun;
using test::ContainsSubstring;
using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using train::OptimizerKind;
using train::OptimizerSettings;
using Tensors = std::vector<Tensor>;

namespace {

OptimizerKind kind_of(const std::string& name) {
  if (name.starts_with("adamw")) return OptimizerKind::kAdamW;
  if (name.starts_with("adam")) return OptimizerKind::kAdam;
  return name.starts_with("sgd") ? OptimizerKind::kSgd : OptimizerKind::kAdadelta;
}

OptimizerSettings settings_of(const std::string& name) {
  OptimizerSettings s;
  s.kind = kind_of(name);
  s.lr = s.kind == OptimizerKind::kSgd ? 0.1 : s.kind == OptimizerKind::kAdadelta ? 1.0 : 0.01;
  if (name == "sgd_momentum") s.momentum = 0.9, s.dampening = 0.1, s.weight_decay = 0.01;
  if (name == "sgd_nesterov") s.momentum = 0.9, s.weight_decay = 5e-4, s.nesterov = true;
  if (name == "adam_amsgrad") s.beta1 = 0.8, s.beta2 = 0.95;
  if (name == "adamw_amsgrad") s.eps = 1e-6;
  if (name == "adam_amsgrad" || name == "adamw_amsgrad") s.weight_decay = 0.1, s.amsgrad = true;
  if (name == "adadelta_decay") s.lr = 0.5, s.rho = 0.8, s.eps = 1e-5, s.weight_decay = 0.1;
  return s;
}

/// Two groups; the second's learning rate is another.
std::unique_ptr<Optimizer> make(const std::string& name, const Tensors& p) {
  auto optimizer = train::make_optimizer(settings_of(name), {{{p[0], p[1]}}, {{p[2]}}});
  optimizer->param_groups()[1].options().set_lr(0.05);
  return optimizer;
}

Tensors leaves(const c10::IValue& tensors) {
  Tensors result;
  for (const c10::IValue& value : tensors.toList())
    result.push_back(value.toTensor().clone().requires_grad_());
  return result;
}

void step(Optimizer& optimizer, const Tensors& parameters, const c10::IValue& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const c10::IValue gradient = gradients.toList().get(i);
    parameters[i].mutable_grad() = gradient.isNone() ? Tensor() : gradient.toTensor();
  }
  optimizer.step();
}

bool same_weights(const Tensor& a, const Tensor& b) {
  const double tolerance = a.scalar_type() == torch::kFloat64 ? 1e-12 : 2e-6;
  return (a - b).abs().max().item<double>() <= tolerance;
}

/// The states that two dicts have in common, by Python's layout.
void check_state(const c10::IValue& ours, const c10::IValue& python) {
  const auto a = ours.toGenericDict().at("state").toGenericDict();
  const auto b = python.toGenericDict().at("state").toGenericDict();
  for (const auto& entry : b) {
    CAPTURE(entry.key().toInt());
    for (const auto& item : entry.value().toGenericDict()) {
      if (item.value().isNone()) continue;  // the momentum buffer of SGD without momentum
      REQUIRE(a.contains(entry.key()));
      const auto found = a.at(entry.key()).toGenericDict();
      REQUIRE(found.contains(item.key()));
      CHECK(same_weights(found.at(item.key()).toTensor(), item.value().toTensor()));
    }
  }
}

const char* const kNames[] = {"sgd",   "sgd_momentum",  "sgd_nesterov", "adam",          "adam_amsgrad",
                              "adamw", "adamw_amsgrad", "adadelta",     "adadelta_decay"};

/// The LibTorch optimizer that ours derives from; SGD's family, Adam's.
std::unique_ptr<Optimizer> make_stock(OptimizerKind kind, const Tensors& parameters) {
  if (kind == OptimizerKind::kSgd)
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  if (kind == OptimizerKind::kAdam)
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1));
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.1));
}

std::unique_ptr<Optimizer> make_fused(OptimizerKind kind, const Tensors& parameters) {
  return train::make_optimizer({.kind = kind, .lr = 0.1, .momentum = 0.9}, {OptimizerParamGroup(parameters)});
}

}  // namespace

TEST_CASE("twenty steps of each optimizer are PyTorch's fused ones, states too", "[optimizer]") {
  for (const std::string type : {"float64", "float32"}) {
    const auto root = serialize::read_pt(std::string(DDPRUN_GOLDEN_DIR "/fused_optimizers/") + type + ".pt")
                          .toGenericDict();
    for (const std::string name : kNames) {
      CAPTURE(type, name);
      const auto golden = root.at("results").toGenericDict().at(name).toGenericDict();
      const auto parameters = leaves(root.at("before"));
      const auto optimizer = make(name, parameters);
      for (const c10::IValue& gradients : root.at("gradients").toList())
        step(*optimizer, parameters, gradients);
      const auto after = golden.at("after").toList();
      for (std::size_t i = 0; i < 3; ++i)
        CHECK(same_weights(parameters[i], c10::IValue(after.get(i)).toTensor()));
      check_state(train::optimizer_state_dict(*optimizer), golden.at("optimizer"));
    }
  }
}

TEST_CASE("an optimizer goes on from Python's fused state dict", "[optimizer]") {
  const auto root = serialize::read_pt(DDPRUN_GOLDEN_DIR "/fused_optimizers/float64.pt").toGenericDict();
  for (const std::string name : kNames) {
    CAPTURE(name);
    const auto golden = root.at("results").toGenericDict().at(name).toGenericDict();
    const auto gradients = root.at("gradients").toList();
    const auto ours = leaves(root.at("before")), again = leaves(golden.at("after"));
    const auto whole = make(name, ours), resumed = make(name, again);
    for (const c10::IValue& each : gradients) step(*whole, ours, each);
    train::load_optimizer_state(*resumed, golden.at("optimizer"), "golden");
    for (std::size_t i = 5; i < 10; ++i) {
      step(*whole, ours, gradients.get(i));
      step(*resumed, again, gradients.get(i));
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_weights(ours[i], again[i]));
  }
}

TEST_CASE("a fused step is LibTorch's where layouts differ, parameters come later, or gradients are sparse",
          "[optimizer]") {
  torch::manual_seed(1);
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const std::string what : {"layouts", "later", "sparse", "not dense", "types"}) {
      if (what == "sparse" && kind != OptimizerKind::kSgd) continue;
      CAPTURE(what, static_cast<int>(kind));
      Tensors ours = {torch::randn({4, 3, 2, 2}), torch::randn({3, 2})}, stock;
      if (what == "layouts") ours[0] = ours[0].contiguous(torch::MemoryFormat::ChannelsLast);
      if (what == "not dense") ours[1] = torch::randn({3, 4}).slice(1, 0, 2);
      if (what == "types") ours[1] = ours[1].to(torch::kFloat64);
      for (auto& parameter : ours) stock.push_back(parameter.clone().requires_grad_());
      for (auto& parameter : ours) parameter = parameter.detach().requires_grad_();
      const auto fused = make_fused(kind, ours), plain = make_stock(kind, stock);
      for (int i = 0; i < 4; ++i) {
        for (std::size_t p = 0; p < 2; ++p) {
          if (what == "later" && p == 1 && i == 0) continue;
          auto gradient = torch::randn(ours[p].sizes(), ours[p].options().requires_grad(false));
          if (what == "sparse" && p == 1) gradient = gradient.to_sparse();
          ours[p].mutable_grad() = gradient;
          stock[p].mutable_grad() = gradient.clone();
        }
        fused->step();
        plain->step();
      }
      for (std::size_t p = 0; p < 2; ++p) CHECK((ours[p] - stock[p]).abs().max().item<double>() < 1e-5);
    }
  }
}

TEST_CASE("an optimizer runs the closure, and needs no parameters and no gradients", "[optimizer]") {
  for (const auto kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdadelta}) {
    const auto parameter = torch::ones(2).requires_grad_();
    const auto optimizer = train::make_optimizer({.kind = kind, .lr = 0.5}, {{{parameter}}, {Tensors{}}});
    optimizer->step();
    CHECK(torch::equal(parameter, torch::ones(2)));
    const auto loss = optimizer->step([&] {
      auto value = (parameter * parameter).sum();
      value.backward();
      return value;
    });
    CHECK(loss.item<double>() == 2);
    CHECK(parameter[0].item<double>() < 1);
    CHECK(parameter.requires_grad());
  }
}

TEST_CASE("optimizer settings out of their range are refused", "[optimizer]") {
  CHECK_THROWS_AS(train::make_optimizer({.kind = OptimizerKind::kSgd, .lr = -1}, {}), c10::Error);
  CHECK_THROWS_WITH(train::make_optimizer({.kind = OptimizerKind::kAdadelta, .rho = 2}, {}),
                    ContainsSubstring("expected rho in [0, 1], got 2"));
  train::Adadelta adadelta({torch::zeros(2).requires_grad_()});
  adadelta.parameters()[0].mutable_grad() = torch::ones(2).to_sparse();
  CHECK_THROWS_WITH(adadelta.step(), ContainsSubstring("expected dense gradients"));
}

TEST_CASE("a step's time, fused and LibTorch's own", "[.][measure]") {
  const auto measure = [](const char* what, const Tensors& parameters) {
    for (const auto& parameter : parameters) parameter.mutable_grad() = torch::randn_like(parameter.detach());
    for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
      double us[2];
      for (const bool fused : {false, true}) {
        const auto optimizer = fused ? make_fused(kind, parameters) : make_stock(kind, parameters);
        for (int i = 0; i < 10; ++i) optimizer->step();
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 200; ++i) optimizer->step();
        us[fused] =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 200;
      }
      std::printf("%s, %s: LibTorch %.0f us, fused %.0f us a step\n", what,
                  kind == OptimizerKind::kSgd    ? "SGD"
                  : kind == OptimizerKind::kAdam ? "Adam"
                                                 : "AdamW",
                  us[0], us[1]);
    }
  };
  measure("MNIST CNN", models::MnistCnn(0)->parameters());
  Tensors small;
  for (int i = 0; i < 100; ++i) small.push_back(torch::randn({32, 32}).requires_grad_());
  measure("100 layers of 32x32", small);
}

TEST_CASE("a change of settings reaches the groups that have the old value", "[optimizer]") {
  const auto parameter = [] { return Tensors{torch::zeros(1).requires_grad_()}; };
  OptimizerSettings from = settings_of("sgd_momentum"), to = from;
  to.weight_decay = 0.5, to.momentum = 0.25;
  const auto sgd = train::make_optimizer(from, {{parameter()}, {parameter()}});
  const auto options = [&](std::size_t i) -> torch::optim::SGDOptions& {
    return dynamic_cast<torch::optim::SGDOptions&>(sgd->param_groups()[i].options());
  };
  options(1).weight_decay(0);  // as of biases
  train::change_settings(*sgd, from, to);
  CHECK(options(0).weight_decay() == 0.5);
  CHECK(options(1).weight_decay() == 0);
  CHECK(options(1).momentum() == 0.25);
  CHECK(options(0).dampening() == 0.1);

  from = to = {.kind = OptimizerKind::kAdamW};
  to.weight_decay = 0.25, to.beta1 = 0.5;
  const auto adamw = train::make_optimizer(from, {{parameter()}});
  train::change_settings(*adamw, from, to);
  const auto& changed = dynamic_cast<torch::optim::AdamWOptions&>(adamw->param_groups()[0].options());
  CHECK(changed.weight_decay() == 0.25);
  CHECK(changed.betas() == std::tuple(0.5, 0.999));
}

TEST_CASE("with rates and steps on the device the weights are those of the options", "[optimizer]") {
  for (const std::string name :
       {"sgd_momentum", "sgd_nesterov", "adam_amsgrad", "adamw_amsgrad", "adadelta_decay"}) {
    CAPTURE(name);
    torch::manual_seed(1);
    Tensors weights, others;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(torch::randn({4, 2}).requires_grad_());
      others.push_back(weights[i].detach().clone().requires_grad_());
    }
    const auto by_options = make(name, weights), on_device = make(name, others);
    const Tensors rates = {torch::zeros({}), torch::zeros({})};
    auto& held_back = dynamic_cast<train::HeldBack&>(*on_device);
    for (int step = 0; step < 6; ++step) {
      if (step == 2) held_back.read_rates(rates);  // counts go over there, and back
      if (step == 4) held_back.settle();           // as for a checkpoint
      if (step == 5) held_back.read_rates({});
      for (std::size_t group = 0; group < 2; ++group) {
        const double lr = 0.1 / static_cast<double>(1 + step + 3 * static_cast<int>(group));
        rates[group].fill_(lr);
        by_options->param_groups()[group].options().set_lr(lr);
        on_device->param_groups()[group].options().set_lr(step < 2 || step == 5 ? lr : 7.0);
      }
      for (std::size_t i = 0; i < 3; ++i)
        others[i].mutable_grad() = weights[i].mutable_grad() = torch::randn({4, 2});
      by_options->step();
      on_device->step();
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(torch::allclose(others[i], weights[i], 1e-5, 1e-7));
    const auto state_of = [](Optimizer& optimizer) {
      return train::optimizer_state_dict(optimizer).toGenericDict().at("state").toGenericDict();
    };
    const auto state = state_of(*on_device), expected = state_of(*by_options);
    for (const auto& item : expected) {
      const auto own = state.at(item.key()).toGenericDict();
      for (const auto& value : item.value().toGenericDict())
        if (value.value().isTensor())
          CHECK(torch::allclose(own.at(value.key()).toTensor(), value.value().toTensor(), 1e-5, 1e-7));
    }
  }
}

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
