// The training rules whose kernels are others on a GPU; skipped without one. CUDA is used in forked ranks
// only.
#include <cmath>
#include <functional>
#include <stdexcept>

#include <ATen/core/Dict.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/spawn.h>
#include <ddprun/group/step_graph.h>
#include <ddprun/train/model/metrics.h>
#include <ddprun/train/optim/gradients.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/optim/optimizer.h>
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace ddprun;
using train::OptimizerKind;
using Tensors = std::vector<torch::Tensor>;

namespace {

void on_a_gpu(const std::function<void(at::Device)>& check) {
  test::skip_without_a_gpu();
  spawn(1, [&](const WorkerEnv&) {
    ddp::cuda_plugin();
    check(at::Device(at::kCUDA, 0));
  });
}

void expect_close(const torch::Tensor& got, const torch::Tensor& expected) {
  if (!torch::allclose(got.detach().cpu(), expected.detach(), 1e-5, 1e-6))
    throw std::runtime_error(
        "differ by " + std::to_string((got.detach().cpu() - expected.detach()).abs().max().item<double>()));
}

/// Weights and their average after five clipped steps.
Tensors train_on(at::Device device, OptimizerKind kind) {
  torch::manual_seed(3);
  Tensors parameters;
  for (int i = 0; i < 4; ++i) parameters.push_back(torch::randn({5, 3}).to(device).requires_grad_());
  const auto optimizer =
      train::make_optimizer({.kind = kind, .lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .amsgrad = true},
                            {torch::optim::OptimizerParamGroup(parameters)});
  train::Ema ema({{"first", parameters[0]}}, {}, {.decay = 0.5});
  for (int step = 0; step < 5; ++step) {
    for (const auto& parameter : parameters) parameter.mutable_grad() = torch::randn({5, 3}).to(device);
    train::clip_grad_norm(parameters, 2.0);
    optimizer->step();
    ema.update();
  }
  parameters.push_back(ema.averages()[0].second);
  return parameters;
}

/// Weights after 16 steps whose rate falls; the last has a smaller batch. graph  null: none
torch::Tensor train_steps(at::Device device, OptimizerKind kind, ddp::StepGraph* graph) {
  torch::manual_seed(3);
  torch::nn::Linear model(6, 3);
  model->to(device);
  const auto optimizer =
      train::make_optimizer({.kind = kind}, {torch::optim::OptimizerParamGroup(model->parameters())});
  const auto rate = torch::zeros({}, torch::dtype(torch::kFloat32).device(device));
  if (graph != nullptr) dynamic_cast<train::HeldBack&>(*optimizer).read_rates({rate});
  const auto train = [&](const Tensors& batch) {
    model->zero_grad();
    const auto loss = model->forward(batch[0]).square().mean();
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
  for (int step = 0; step < 16; ++step) {
    const double lr = 0.1 / (step + 1);
    optimizer->param_groups()[0].options().set_lr(lr);
    rate.fill_(lr);
    const Tensors batch = {torch::randn({step == 15 ? 4 : 8, 6}).to(device)};
    graph != nullptr ? graph->run(batch, train) : train(batch);
  }
  return model->weight;
}

}  // namespace

TEST_CASE("clipped steps and averages on CUDA are the CPU's, with each optimizer", "[gpu][optimizer]") {
  on_a_gpu([](at::Device device) {
    for (const auto kind :
         {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdadelta}) {
      const auto there = train_on(device, kind), here = train_on(at::kCPU, kind);
      for (std::size_t i = 0; i < here.size(); ++i) expect_close(there[i], here[i]);
    }
  });
}

TEST_CASE("steps of a CUDA graph are the CPU's, with each optimizer", "[gpu][step_graph]") {
  test::skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    const auto group = ddp::ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda});
    for (const auto kind :
         {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdadelta}) {
      ddp::StepGraph graph(group, /*required=*/true);
      expect_close(train_steps(group.device(), kind, &graph), train_steps(at::kCPU, kind, nullptr));
      if (!graph.captured()) throw std::runtime_error("expected a graph");
    }
  });
}

TEST_CASE("float16 training on CUDA skips the step of an infinite gradient", "[gpu][grad_scaler]") {
  on_a_gpu([](at::Device device) {
    torch::nn::Conv2d layer(torch::nn::Conv2dOptions(3, 4, 3));
    layer->to(device);
    train::to_channels_last(*layer);
    const auto optimizer =
        train::make_optimizer({.kind = OptimizerKind::kSgd, .lr = 0.1}, {{layer->parameters()}});
    train::GradScaler scaler(device, {});
    train::Mean accuracy;
    const auto step = [&](double factor) {
      optimizer->zero_grad();
      torch::Tensor loss;
      {
        const train::AutocastScope scope(train::Precision::k16Mixed, device.type());
        const auto output = layer->forward(train::channels_last(torch::ones({2, 3, 4, 4}).to(device)));
        if (output.scalar_type() != torch::kFloat16) throw std::runtime_error("not computed in float16");
        accuracy.add(output.flatten(1).argmax(1) == 0);
        loss = output.to(torch::kFloat32).square().mean() * factor;
      }
      scaler.scale(loss).backward();
      const bool stepped = scaler.step(*optimizer);
      scaler.update();
      return stepped;
    };
    if (step(INFINITY) || scaler.get_scale() != 32768) throw std::runtime_error("a step was not skipped");
    if (!step(0.01) || scaler.skipped_steps() != 1) throw std::runtime_error("a step was skipped");
    if (accuracy.sums()[1] != 4) throw std::runtime_error("not every sample was counted");
  });
}
