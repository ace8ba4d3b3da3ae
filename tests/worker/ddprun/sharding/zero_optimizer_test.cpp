#include <ddprun/sharding/zero_optimizer.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/optim/optimizer.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/refused.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using ddp::ProcessGroup;
using ddp::ZeroOptimizer;
using torch::Tensor;
namespace o = torch::optim;

namespace {

/// Weights and biases of sizes that do not divide evenly.
torch::nn::Sequential make_model(torch::Dtype dtype = torch::kFloat64) {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Linear(10, 24), torch::nn::ReLU(), torch::nn::Linear(24, 24),
                              torch::nn::ReLU(), torch::nn::Linear(24, 17), torch::nn::ReLU(),
                              torch::nn::Linear(17, 3));
  model->to(dtype);
  return model;
}

ZeroOptimizer::Groups one_group(std::vector<Tensor> parameters) {
  ZeroOptimizer::Groups groups;
  groups.emplace_back(std::move(parameters));
  return groups;
}

/// Weights and biases in separate groups, each with its own options.
template <typename Options>
ZeroOptimizer::Groups make_groups(torch::nn::Sequential& model, Options options) {
  std::vector<Tensor> weights, biases;
  for (const auto& parameter : model->parameters())
    (parameter.dim() > 1 ? weights : biases).push_back(parameter);
  auto other = options;
  other.lr(options.lr() / 2).weight_decay(0.1);
  ZeroOptimizer::Groups groups;
  groups.emplace_back(weights, std::make_unique<Options>(options));
  groups.emplace_back(biases, std::make_unique<Options>(other));
  return groups;
}

template <typename Optimizer, typename Options>
ZeroOptimizer::Factory factory(Options options) {
  return [options](ZeroOptimizer::Groups groups) {
    return std::make_unique<Optimizer>(std::move(groups), options);
  };
}

struct StepBatch {
  explicit StepBatch(int step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + step));
    x = torch::randn({12, 10}, torch::kFloat64);
  }
  Tensor part(const ProcessGroup& group) const {
    const auto count = 12 / group.size();
    return x.slice(0, group.rank() * count, (group.rank() + 1) * count);
  }
  Tensor x;
};

Tensor loss_of(torch::nn::Sequential& model, const Tensor& x) {
  return (model->forward(x) - x.slice(1, 0, 3)).square().mean();
}

void ensure_equal_weights(torch::nn::Sequential& model, torch::nn::Sequential& other, double tolerance = 0) {
  for (const auto& item : model->named_parameters()) {
    const auto expected = other->named_parameters()[item.key()];
    const double difference = (item.value() - expected).abs().max().item<double>();
    ensure(difference <= tolerance, (item.key() + " differs by " + std::to_string(difference)).c_str());
  }
}

/// Ten steps with DDP beside the plain optimizer on the same gradients; the learning rate changes midway.
template <typename Optimizer, typename Options>
void check_equals_plain(const ProcessGroup& group, const Options& options) {
  auto model = make_model(), plain_model = make_model();
  ddp::DistributedDataParallel ddp(*model, group);
  ZeroOptimizer optimizer(make_groups(model, options), factory<Optimizer>(options), group);
  Optimizer plain(make_groups(plain_model, options), options);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    for (const auto& parameter : model->parameters())
      ensure(!parameter.grad().defined(), "zero_grad() is of all parameters");
    if (step == 5)
      for (o::Optimizer* each : std::initializer_list<o::Optimizer*>{&optimizer, &plain})
        for (auto& param_group : each->param_groups())
          param_group.options().set_lr(param_group.options().get_lr() / 10);
    ddp.forward([&] { return loss_of(model, StepBatch(step).part(group)); }).backward();
    for (const auto& item : model->named_parameters())
      plain_model->named_parameters()[item.key()].mutable_grad() = item.value().grad().clone();
    optimizer.step();
    plain.step();
    ensure_equal_weights(model, plain_model);
  }
}

std::int64_t state_bytes(o::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const o::AdamParamState&>(*state);
    bytes += static_cast<std::int64_t>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  return bytes;
}

}  // namespace

TEST_CASE("parameters are divided as ZeroRedundancyOptimizer divides them", "[zero_optimizer]") {
  for (const auto& c : test::read_golden("zero_partition/owners.json")) {
    CAPTURE(c.dump());
    CHECK(ddp::partition_parameters(c["groups"], c["ranks"]) == c["owners"].get<std::vector<int>>());
  }
}

TEST_CASE("ZeroOptimizer's weights are bit for bit the plain optimizer's", "[zero_optimizer]") {
  for (const int size : {1, 2, 3})
    test::run_ranks(size, [](const ProcessGroup& group) {
      check_equals_plain<o::SGD>(group, o::SGDOptions(0.1).momentum(0.9));
      check_equals_plain<o::Adam>(group, o::AdamOptions(0.01));
      check_equals_plain<o::AdamW>(group, o::AdamWOptions(0.01).amsgrad(true));
      check_equals_plain<train::FusedSgd>(group, o::SGDOptions(0.1).momentum(0.9));
      check_equals_plain<train::FusedAdam>(group, o::AdamOptions(0.01));
      check_equals_plain<train::FusedAdamW>(group, o::AdamWOptions(0.01).amsgrad(true));
      check_equals_plain<train::Adadelta>(group, train::AdadeltaOptions(0.5));
    });
}

TEST_CASE("more ranks than parameters, frozen ones, other types and memory formats", "[zero_optimizer]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    torch::manual_seed(6);
    const auto one =
        torch::randn({4, 3, 2, 2}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
    const auto two = torch::randn({5}, torch::kFloat64).requires_grad_(), frozen = torch::randn({7});
    const auto* frozen_memory = frozen.data_ptr();
    const auto expected_one = one.detach() - 0.5, expected_two = two.detach() - 0.5;
    ZeroOptimizer optimizer(one_group({one, two, frozen}), factory<o::SGD>(o::SGDOptions(0.5)), group);
    for (const auto& each : {one, two}) each.mutable_grad() = torch::ones_like(each);
    optimizer.step();
    ensure(one.equal(expected_one) && two.equal(expected_two), "all parameters are updated on all ranks");
    ensure(one.is_contiguous(torch::MemoryFormat::ChannelsLast), "the memory format stays");
    ensure(frozen.data_ptr() == frozen_memory, "a frozen parameter stays where it is");
    const auto before = one.sum();
    const auto loss = optimizer.step([&] { return one.sum(); });
    ensure(loss.equal(before) && loss.requires_grad(), "a closure is run before the step, with gradients");
  });
}

TEST_CASE("each rank keeps about 1 / ranks of the optimizer's state", "[zero_optimizer]") {
  for (const int size : {1, 2, 3, 4})
    test::run_ranks(size, [](const ProcessGroup& group) {
      auto model = make_model(), plain_model = make_model();
      ZeroOptimizer optimizer({model->parameters()}, factory<o::Adam>(o::AdamOptions()), group);
      o::Adam plain(plain_model->parameters());
      loss_of(model, StepBatch(0).x).backward();
      loss_of(plain_model, StepBatch(0).x).backward();
      optimizer.step();
      plain.step();
      const auto share =
          static_cast<double>(state_bytes(optimizer)) / static_cast<double>(state_bytes(plain));
      // The largest of the model's matrices is half of it.
      ensure(share <= (group.size() < 3 ? 1.05 / group.size() : 0.5), std::to_string(share).c_str());
    });
}

TEST_CASE("ZeroOptimizer's state dict is the plain optimizer's", "[zero_optimizer]") {
  const TempDir dir;
  test::run_ranks(3, [&](const ProcessGroup& group) {
    auto model = make_model(), plain_model = make_model();
    const o::AdamOptions options(0.01);
    ZeroOptimizer optimizer(make_groups(model, options), factory<o::Adam>(options), group);
    o::Adam plain(make_groups(plain_model, options), options);
    for (int step = 0; step < 3; ++step) {
      loss_of(model, StepBatch(step).x).backward();
      loss_of(plain_model, StepBatch(step).x).backward();
      optimizer.step();
      plain.step();
    }
    const auto found = train::optimizer_state_dict(optimizer);
    ensure(found.isNone() == (group.rank() != 0), "the state dict is rank 0's");
    if (group.rank() != 0) return;
    serialize::write_pt(dir.path() / "zero.pt", found);
    serialize::write_pt(dir.path() / "plain.pt", train::optimizer_state_dict(plain));
    ensure(read_file(dir.path() / "zero.pt") == read_file(dir.path() / "plain.pt"), "the files are the same");
  });
}

TEST_CASE("what three ranks save two ranks and one go on from", "[zero_optimizer]") {
  constexpr int kSteps = 4;
  const TempDir dir;
  const auto path = dir.path() / "state.pt";
  const o::AdamOptions options(0.01);
  const auto train_steps = [&](const ProcessGroup& group, int begin, int end, bool save) {
    auto model = make_model();
    if (begin > 0) train::load_weights(*model, train::read_weights(path), path);
    ddp::DistributedDataParallel ddp(*model, group);
    ZeroOptimizer optimizer(make_groups(model, options), factory<o::Adam>(options), group);
    if (begin > 0)
      train::load_optimizer_state(optimizer, serialize::read_pt(path).toGenericDict().at("optimizer"), path);
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      ddp.forward([&] { return loss_of(model, StepBatch(step).part(group)); }).backward();
      optimizer.step();
    }
    auto state = train::optimizer_state_dict(optimizer);
    if (save && group.rank() == 0) {
      c10::impl::GenericDict root(c10::StringType::get(), c10::AnyType::get());
      root.insert("model", train::state_dict(*model));
      root.insert("optimizer", state);
      serialize::write_pt(path, root);
    }
    return model;
  };
  test::run_ranks(3, [&](const ProcessGroup& group) { train_steps(group, 0, kSteps, true); });
  for (const int size : {2, 1})
    test::run_ranks(size, [&](const ProcessGroup& group) {
      auto model = train_steps(group, kSteps, 2 * kSteps, false), plain_model = make_model();
      o::Adam plain(make_groups(plain_model, options), options);
      for (int step = 0; step < 2 * kSteps; ++step) {
        plain.zero_grad();
        loss_of(plain_model, StepBatch(step).x).backward();
        plain.step();
      }
      ensure_equal_weights(model, plain_model, 1e-12);
    });
}

TEST_CASE("ZeroOptimizer refuses what it cannot divide", "[zero_optimizer]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto sgd = factory<o::SGD>(o::SGDOptions(0.1));
    const auto p = torch::zeros({3}).requires_grad_(), frozen = torch::zeros({2});
    test::ensure_refused([&] { ZeroOptimizer({}, sgd, group); }, "expected parameters, got none");
    test::ensure_refused([&] { ZeroOptimizer(one_group({p, p}), sgd, group); }, "got a duplicate");
    ZeroOptimizer optimizer(one_group({p, frozen}), sgd, group);
    optimizer.step();
    frozen.requires_grad_(true);
    test::ensure_refused([&] { optimizer.step(); }, "made trainable");
    frozen.requires_grad_(false);
    const auto memory = p.detach();
    p.set_data(torch::ones({3}));
    test::ensure_refused([&] { optimizer.step(); }, "memory was replaced");
    p.set_data(memory);
    optimizer.step();
    optimizer.add_param_group(one_group({torch::zeros({1})})[0]);
    test::ensure_refused([&] { optimizer.step(); }, "was added");
  });
}
