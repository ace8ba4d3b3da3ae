// Fully sharded training in mixed precision: the losses and weights of torch.distributed.fsdp.fully_shard on
// two ranks over Gloo, with the same MixedPrecisionPolicy.
#include <ATen/autocast_mode.h>
#include <ATen/core/Dict.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/counted_memory.h"
#include "tests/support/python.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using ddp::FullyShardedDataParallel;
using ddp::ProcessGroup;

namespace {

constexpr std::int64_t kMixedSteps = 6;

const std::string kPython = R"(
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
B, F = torch.bfloat16, torch.float32
POLICIES = {'all': (B, None, None), 'params': (B, F, F), 'reduce': (None, B, None), 'none': (None, None, None)}
def make():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
def main(rank):
    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('meeting'), rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh('cpu', (2,))
    data, result = torch.load('data.pt'), {}
    for name, (param, reduce, output) in POLICIES.items():
        model = make()
        model.load_state_dict(data['model'])
        policy = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce, output_dtype=output)
        for layer in [*model, model]:
            if list(layer.parameters()): fully_shard(layer, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for i in range(6):
            optimizer.zero_grad()
            out = model(data['x'][i, rank])
            loss = (out - data['y'][i, rank].to(out.dtype)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().float())
        result[name] = {'dtype': str(out.dtype), 'losses': torch.stack(losses)}
        for key, value in model.state_dict().items(): result[name][key] = value.full_tensor()
    if rank == 0: torch.save(result, 'python.pt')
    dist.barrier()
    dist.destroy_process_group()
if __name__ == '__main__':
    torch.manual_seed(2)
    x = torch.randn(6, 2, 8, 6)
    torch.save({'model': dict(make().state_dict()), 'x': x, 'y': x.sum(3, keepdim=True).sin()}, 'data.pt')
    mp.spawn(main, nprocs=2)
    print('agreed')
    sys.exit()
)";

using Policies = std::map<std::string, FullyShardedDataParallel::MixedPrecision>;

const Policies kPolicies = {
    {"all", {.param_dtype = at::kBFloat16}},
    {"params", {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat}},
    {"reduce", {.reduce_dtype = at::kBFloat16}},
    {"none", {}}};

torch::nn::Sequential make_model(const c10::impl::GenericDict& weights) {
  torch::nn::Sequential model(torch::nn::Linear(6, 16), torch::nn::Tanh(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                              torch::nn::Linear(16, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  train::StateDict named;
  for (const auto& item : weights) named.emplace_back(item.key().toStringRef(), item.value().toTensor());
  train::load_weights(*model, named, "data.pt");
  return model;
}

void train_ours(const ProcessGroup& group, const std::filesystem::path& folder) {
  const auto data = serialize::read_pt(folder / "data.pt").toGenericDict();
  auto all = train::make_state();
  for (const auto& [name, policy] : kPolicies) {
    auto model = make_model(data.at("model").toGenericDict());
    FullyShardedDataParallel fsdp(*model, group, {.unit_bytes = 1 << 9, .mixed_precision = policy});
    torch::optim::SGD optimizer(fsdp.shards(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto result = train::make_state();
    std::vector<torch::Tensor> losses;
    for (std::int64_t i = 0; i < kMixedSteps; ++i) {
      optimizer.zero_grad();
      const auto x = data.at("x").toTensor()[i][group.rank()], y = data.at("y").toTensor()[i][group.rank()];
      const auto out =
          fsdp.forward([&] { return model->forward(x.to(policy.param_dtype.value_or(at::kFloat))); });
      const auto loss = (out - y.to(out.scalar_type())).square().mean();
      loss.backward();
      for (const auto& shard : fsdp.shards())
        ensure(shard.grad().scalar_type() == at::kFloat, "as the shard");
      optimizer.step();
      losses.push_back(loss.detach().to(at::kFloat));
      result.insert_or_assign("dtype", out.scalar_type() == at::kFloat ? "torch.float32" : "torch.bfloat16");
    }
    result.insert("losses", torch::stack(losses));
    const auto whole = fsdp.full_parameters();
    for (const auto& item : model->named_parameters())
      result.insert(item.key(), item.value().detach().clone());
    all.insert(name, result);
  }
  if (group.rank() == 0) serialize::write_pt(folder / "ours.pt", all);
}

}  // namespace

TEST_CASE("mixed precision is that of fully_shard", "[fully_sharded]") {
  const TempDir dir;
  test::check_python(dir.path(), "torch", kPython);
  test::run_ranks(2, [&](const ProcessGroup& group) { train_ours(group, dir.path()); });
  const auto theirs = serialize::read_pt(dir.path() / "python.pt").toGenericDict();
  const auto ours = serialize::read_pt(dir.path() / "ours.pt").toGenericDict();
  for (const auto& [name, policy] : kPolicies)
    for (const auto& item : theirs.at(name).toGenericDict()) {
      CAPTURE(name, item.key().toStringRef());
      const auto mine = ours.at(name).toGenericDict().at(item.key());
      if (item.value().isString()) {
        CHECK(mine.toStringRef() == item.value().toStringRef());
        continue;
      }
      INFO(mine.toTensor() << "\n\n" << item.value().toTensor());
      CHECK(mine.toTensor().scalar_type() == at::kFloat);
      // Products of 16-bit parameters are rounded as the kernel adds them up, which depends on where they
      // lie.
      const bool rounds = policy.param_dtype.has_value();
      CHECK(at::allclose(mine.toTensor(), item.value().toTensor(), rounds ? 1.0 / 256 : 1e-5,
                         rounds ? 2e-3 : 1e-6));
    }
  // The types matter: without them the losses would be others.
  const auto losses = [&](const char* name) { return ours.at(name).toGenericDict().at("losses").toTensor(); };
  CHECK_FALSE(at::allclose(losses("all"), losses("none"), 1e-4, 1e-5));
  CHECK_FALSE(at::allclose(losses("reduce"), losses("none"), 1e-4, 1e-5));
}

TEST_CASE("whole parameters are those of the shards, whatever they are gathered in", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(4);
    torch::nn::Sequential model(torch::nn::Linear(5, 7),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
    std::vector<torch::Tensor> before;
    for (const auto& parameter : model->parameters()) before.push_back(parameter.detach().clone());
    FullyShardedDataParallel fsdp(*model, group,
                                  {.mixed_precision = {.param_dtype = at::kBFloat16, .norms = false}});
    for (int round = 0; round < 2; ++round) {
      const torch::NoGradGuard no_grad;
      const auto out = fsdp.forward([&] { return model->forward(torch::ones({2, 5}, at::kBFloat16)); });
      ensure(out.scalar_type() == at::kBFloat16, "computed in bfloat16");
      const auto whole = fsdp.full_parameters();
      const auto now = model->parameters();
      for (std::size_t i = 0; i < now.size(); ++i) {
        ensure(now[i].scalar_type() == at::kFloat && now[i].equal(before[i]), "not rounded");
        now[i].add_(0.001);  // is kept
        before[i] = now[i].detach().clone();
      }
    }
    ensure(fsdp.units().size() == 2, "the norm is a unit of its own");
  });
}

TEST_CASE("gathered in bfloat16, autograd keeps no copy of a weight under autocast", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    constexpr std::int64_t kWidth = 256, kDepth = 12;
    constexpr std::size_t kCopy = 2 * kWidth * (kWidth + 1) * kDepth;  // bytes of all weights in bfloat16
    const auto held = [&](const FullyShardedDataParallel::MixedPrecision& precision) {
      torch::nn::Sequential net;
      for (int i = 0; i < kDepth; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
      FullyShardedDataParallel fsdp(*net, group, {.unit_bytes = 1, .mixed_precision = precision});
      const auto before = test::tensor_bytes();
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      auto loss = fsdp.forward([&] { return net->forward(torch::ones({1, kWidth})).sum(); });
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      const auto between = test::tensor_bytes() - before;  // forward and backward
      loss.backward();
      return between;
    };
    at::globalContext().setUserEnabledMkldnn(false);  // it allocates in a way that cannot be counted
    test::count_tensor_memory();
    ensure(held({.param_dtype = at::kBFloat16, .norms = false}) < kCopy / 3, "two units at most");
    ensure(held({}) > kCopy, "a copy of all weights, were they gathered in float32");
  });
}
