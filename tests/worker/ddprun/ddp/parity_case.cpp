#include "tests/worker/ddprun/ddp/parity_case.h"

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/group/collectives.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/zero_optimizer.h>
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/parity_models.h"

namespace ddprun::test {
namespace {

using ddp::DistributedDataParallel;
using ddp::FullyShardedDataParallel;

torch::Dtype dtype_of(const ParityCase& the_case) {
  const std::string name = the_case.entry["dtype"];
  if (name == "bfloat16") return torch::kBFloat16;
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

DistributedDataParallel::Options options_of(const ParityCase& the_case) {
  DistributedDataParallel::Options options;
  options.broadcast_buffers = the_case.entry.value("broadcast_buffers", true);
  options.find_unused_parameters = the_case.has("find_unused_parameters");
  options.static_graph = the_case.has("static_graph");
  options.gradient_as_bucket_view = the_case.has("gradient_as_bucket_view");
  if (the_case.has("bucket_bytes")) options.bucket_bytes = the_case.file["bucket_bytes"];
  if (the_case.entry.value("hook", "") == "powersgd") options.bucket_bytes = 100 << 20;  // as Python's
  return options;
}

/// parameters  the module's, or what a rank keeps of them
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ParityCase& the_case,
                                                        const std::vector<torch::Tensor>& parameters,
                                                        const ddp::ProcessGroup& group) {
  const std::string kind = the_case.entry.value("optimizer", "sgd");
  const double rate = the_case.file["lr"][kind];
  const auto make = [&](auto own) -> std::unique_ptr<torch::optim::Optimizer> {
    if (kind == "adam")
      return std::make_unique<torch::optim::Adam>(std::move(own), torch::optim::AdamOptions(rate));
    return std::make_unique<torch::optim::SGD>(std::move(own), torch::optim::SGDOptions(rate).momentum(0.9));
  };
  if (the_case.has("zero1"))
    return std::make_unique<ddp::ZeroOptimizer>(
        ddp::ZeroOptimizer::Groups{torch::optim::OptimizerParamGroup(parameters)}, make, group);
  return make(parameters);
}

void register_hook(const ParityCase& the_case, DistributedDataParallel& parallel,
                   const ddp::ProcessGroup& group) {
  const std::string hook = the_case.entry.value("hook", "");
  if (hook == "fp16") parallel.register_comm_hook(ddp::fp16_compress_hook(group));
  if (hook == "bf16") parallel.register_comm_hook(ddp::bf16_compress_hook(group));
  if (hook == "powersgd") {
    ddp::PowerSgd::Options options;
    options.start_iteration = the_case.file["powersgd_start"];
    parallel.register_comm_hook(ddp::powersgd_hook(std::make_shared<ddp::PowerSgd>(group, options)));
  }
}

/// Losses alone may be as near Python's without the hook.
void check_hook_was_used(const ParityCase& the_case) {
  const std::string hook = the_case.entry.value("hook", "");
  if (hook != "fp16" && hook != "bf16") return;  // PowerSGD's losses are its own
  const std::string dtype = hook == "fp16" ? "half" : "bfloat16";
  const auto last_step = ddp::flight_recorder().records(16);
  const bool used = std::any_of(last_step.begin(), last_step.end(), [&](const auto& call) {
    return call.op == "all_reduce" && call.dtype == dtype;
  });
  if (!used) throw std::runtime_error(the_case.name() + ": expected gradients to be sent as " + dtype);
}

/// One rank's model and data of a case, and its losses.
class Training {
 public:
  Training(const ParityCase& the_case, const ddp::ProcessGroup& group)
      : case_(the_case),
        rank_(group.rank()),
        world_(group.size()),
        model_(make_parity_model(the_case.entry["model"])) {
    model_.module->to(dtype_of(the_case));
    if (the_case.has("sync_bn")) ddp::convert_sync_batchnorm(*model_.module, group);
    if (the_case.has("fsdp")) {
      // Small units, so that the little models have several.
      fsdp_ = std::make_unique<FullyShardedDataParallel>(
          *model_.module, group,
          FullyShardedDataParallel::Options{.unit_bytes = 1 << 16, .broadcast_buffers = false});
    } else {
      ddp_ = std::make_unique<DistributedDataParallel>(*model_.module, group, options_of(the_case));
      register_hook(the_case, *ddp_, group);
    }
    optimizer_ = make_optimizer(the_case, fsdp_ ? fsdp_->shards() : model_.module->parameters(), group);
  }

  void run() {
    const int steps = case_.file["steps"];
    if (case_.has("join")) return run_uneven(steps - 12 * rank_);
    const int eval_every = case_.file["eval_every"];
    for (int step = 0; step < steps; ++step) {
      losses.push_back(train_step(step));
      if (step % eval_every == eval_every - 1 && case_.entry["model"] != "cnn")
        evaluated.push_back(evaluate(step + 1));
    }
  }

  std::vector<double> losses, evaluated;

 private:
  void run_uneven(int steps) {
    auto join = ddp_->join({.divide_by_initial_world_size = case_.entry["join"] == "initial"});
    for (int step = 0; step < steps; ++step) losses.push_back(train_step(step));
    join.finish();
  }

  double train_step(int step) {
    const int micro_batches = case_.entry.value("accumulate", 1);
    double total = 0;
    if (fsdp_)
      optimizer_->zero_grad();
    else
      ddp_->zero_grad();
    for (int i = 0; i < micro_batches - 1; ++i) {
      const auto no_sync = ddp_->no_sync();
      total += backward(step * micro_batches + i, micro_batches);
    }
    total += backward(step * micro_batches + micro_batches - 1, micro_batches);
    optimizer_->step();
    return total;
  }

  template <typename Compute>
  torch::Tensor forward(Compute compute) {
    return fsdp_ ? fsdp_->forward(compute) : ddp_->forward(compute);
  }

  double backward(int batch, int micro_batches) {
    const auto loss = forward([&] { return loss_of(batch) / micro_batches; });
    loss.backward();
    return loss.item<double>();
  }

  double evaluate(int step) {
    const torch::NoGradGuard no_grad;
    model_.module->eval();
    const double loss = forward([&] { return loss_of(step); }).item<double>();
    model_.module->train();
    return loss;
  }

  torch::Tensor loss_of(int step) const {
    const std::int64_t size = case_.file["batch_size"];
    const int batch = step % case_.file["batches"].get<int>();
    const auto first = static_cast<std::uint64_t>((batch * world_ + rank_) * size);
    auto shape = case_.file["image"].get<std::vector<std::int64_t>>();
    const auto elements = static_cast<std::uint64_t>(shape[0] * shape[1] * shape[2]);
    shape.insert(shape.begin(), size);
    const auto images = (4 * formula("image", shape, first * elements)).to(dtype_of(case_));
    return model_.loss(images, formula_labels(first, size), branches_of(step));
  }

  std::string branches_of(int step) const {
    const std::string kind = case_.entry.value("branches", "ab");
    if (kind != "turns") return kind;
    return (step + rank_) % 2 == 0 ? "a" : "b";
  }

  const ParityCase& case_;
  int rank_, world_;
  ParityModel model_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<FullyShardedDataParallel> fsdp_;  // in its place
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// Of every step, the mean over the ranks that have it.
std::vector<double> means(const ddp::ProcessGroup& group, std::vector<double> own, std::size_t length) {
  std::vector<double> sums(2 * length, 0.0);
  std::copy(own.begin(), own.end(), sums.begin());
  std::fill_n(sums.begin() + static_cast<std::ptrdiff_t>(length), own.size(), 1.0);
  sums = ddp::all_reduce_sum(group, sums);
  for (std::size_t i = 0; i < length; ++i) sums[i] /= sums[length + i];
  sums.resize(length);
  return sums;
}

void compare(const std::string& name, const std::vector<double>& ours, const nlohmann::json& golden,
             double tolerance, std::string& result) {
  if (ours.size() != golden.size()) {
    result += name + ": " + std::to_string(ours.size()) + " losses, Python has " +
              std::to_string(golden.size()) + "\n";
    return;
  }
  double worst = -1;
  std::size_t where = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double python = golden[i];
    const double difference = std::abs(ours[i] - python) / std::max(1.0, std::abs(python));
    if (difference > worst || std::isnan(difference)) worst = difference, where = i;
    if (std::isnan(difference)) break;
  }
  if (worst <= tolerance || ours.empty()) return;
  char text[160];
  std::snprintf(text, sizeof text, ", step %zu: %.10g, Python's %.10g: differs by %.2g, allowed is %.2g\n",
                where, ours[where], golden[where].get<double>(), worst, tolerance);
  result += name + text;
}

}  // namespace

std::string ParityCase::name() const {
  return entry["model"].get<std::string>() + ", " + entry["dtype"].get<std::string>() + ", " +
         std::to_string(entry["world"].get<int>()) + " ranks, " + entry["option"].get<std::string>();
}

double ParityCase::tolerance() const {
  const auto dtype = dtype_of(*this);
  if (dtype == torch::kBFloat16) return 0.05;  // a few units in the last of its 8 bits
  // Orthogonalising and the fed back error make rounding grow.
  if (dtype == torch::kFloat32 && entry.value("hook", "") == "powersgd") return 1e-4;
  return dtype == torch::kFloat64 ? 1e-6 : 1e-5;
}

std::vector<ParityCase> parity_cases(const std::string& model, int world) {
  auto file = read_golden("ddp_parity/" + model + "_" + std::to_string(world) + ".json");
  const auto entries = file["cases"];
  file.erase("cases");
  std::vector<ParityCase> result;
  for (const auto& entry : entries) result.push_back({file, entry});
  return result;
}

ParityLosses train_parity_case(const ParityCase& the_case, const ddp::ProcessGroup& group) {
  Training training(the_case, group);
  training.run();
  check_hook_was_used(the_case);
  return {means(group, training.losses, the_case.entry["losses"].size()),
          means(group, training.evaluated, the_case.entry["eval_losses"].size())};
}

void check_parity(const std::string& model, int world, const std::function<bool(const ParityCase&)>& chosen) {
  const auto cases = parity_cases(model, world);
  // Before torch reads them: the same instructions, so the same rounding, on every processor.
  for (const auto& [name, value] : cases.front().file["environment"].items())
    ::setenv(name.c_str(), std::string(value).c_str(), /*overwrite=*/1);
  run_ranks(world, [&](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    std::string differences;
    for (const auto& one : cases)
      if (chosen(one)) differences += compare_parity_case(one, train_parity_case(one, group));
    if (!differences.empty()) throw std::runtime_error(differences);
  });
}

std::string compare_parity_case(const ParityCase& the_case, const ParityLosses& losses) {
  std::string result;
  compare(the_case.name(), losses.steps, the_case.entry["losses"], the_case.tolerance(), result);
  compare(the_case.name() + ", evaluated", losses.evaluated, the_case.entry["eval_losses"],
          the_case.tolerance(), result);
  return result;
}

}  // namespace ddprun::test
