#include "worker/ddp/comm_hooks.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/errors.h"
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "worker/ddp/collectives.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/powersgd_hook.h"

using namespace ddprun;
using ddp::CommHook;
using ddp::DistributedDataParallel;
using ddp::PowerSgd;
using ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;

namespace {

/// Convolutions, square layers of one shape, and a layer without bias, in several buckets: HookNet of
/// scripts/make_golden.py.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
    register_module("fc4", fc4);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(conv2(torch::relu(conv1(images)))).flatten(1);
    for (auto layer : {fc1, fc2, fc3}) x = torch::tanh(layer(x));
    return fc4(x);
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 16, 3).stride(2)};
  torch::nn::Linear fc1{144, 64}, fc2{64, 64}, fc3{64, 64};
  torch::nn::Linear fc4{torch::nn::LinearOptions(64, 10).bias(false)};
};
TORCH_MODULE(Net);

const DistributedDataParallel::Options kSmallBuckets = {.bucket_bytes = 20'000, .first_bucket_bytes = 20'000};

/// One rank's training, as scripts/make_golden.py does it.
struct Training {
  explicit Training(const ProcessGroup& its_group, torch::Dtype its_dtype = torch::kFloat32)
      : group(its_group), dtype(its_dtype), net(make_net(its_dtype)), ddp(*net, its_group, kSmallBuckets) {
    torch::manual_seed(11);
    images = torch::randn({480, 1, 8, 8});
    labels = torch::avg_pool2d(images, 4).flatten(1).argmax(1);  // the brightest quarter
    images = images.to(dtype);
  }

  static Net make_net(torch::Dtype dtype) {
    torch::manual_seed(7);
    Net net;
    net->to(dtype);
    return net;
  }

  /// returns  the loss, mean over ranks
  double step(int number) {
    const int begin = number % 10 * 48 + group.rank() * 16;
    optimizer.zero_grad();
    const auto loss = ddp.forward([&] {
      return torch::cross_entropy_loss(net->forward(images.slice(0, begin, begin + 16)),
                                       labels.slice(0, begin, begin + 16));
    });
    loss.backward();
    optimizer.step();
    return ddp::all_reduce_sum(group, {loss.item<double>()})[0] / group.size();
  }

  const ProcessGroup& group;
  torch::Dtype dtype;
  Net net;
  DistributedDataParallel ddp;
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  torch::Tensor images, labels;
};

PowerSgd::Options power_sgd_options(const std::string& name) {
  PowerSgd::Options options;
  options.start_iteration = 2;
  if (name == "powersgd_2") {
    options.rank = 2;
    options.random_seed = 3;
  } else if (name == "powersgd_4_batched") {
    options.rank = 4;
    options.start_iteration = 5;
    options.min_compression_rate = 1.5;
    options.batch_tensors_with_same_shape = true;
  } else if (name == "powersgd_1_memoryless") {
    options.start_iteration = 0;
    options.use_error_feedback = options.warm_start = false;
    options.orthogonalization_epsilon = 1e-8;
  } else {
    ensure(name == "powersgd_1", "a name that the golden has");
  }
  return options;
}

/// Before the first operation of a rank: arithmetic as in the golden files, on every processor.
void use_same_arithmetic() {
  ::setenv("ATEN_CPU_CAPABILITY", "default", 1);
  ::setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
  ::setenv("MKL_CBWR", "COMPATIBLE", 1);
}

void check_run(const ProcessGroup& group, const nlohmann::json& run) {
  const std::string name = run["hook"];
  const bool is_double = run["dtype"] == "float64";
  Training training(group, is_double ? torch::kFloat64 : torch::kFloat32);
  std::shared_ptr<PowerSgd> power_sgd;
  if (name.rfind("powersgd", 0) == 0) {
    power_sgd = std::make_shared<PowerSgd>(group, power_sgd_options(name));
    training.ddp.register_comm_hook(ddp::powersgd_hook(power_sgd));
  } else if (auto hook = ddp::make_comm_hook(name, group)) {
    training.ddp.register_comm_hook(std::move(hook));
  }
  const double tolerance = is_double ? 1e-6 : 1e-5;
  double largest = 0;
  for (int i = 0; i < 50; ++i) {
    const double expected = run["losses"][static_cast<std::size_t>(i)], loss = training.step(i);
    largest = std::max(largest, std::abs(loss - expected));
    ensure(std::abs(loss - expected) <= tolerance,
           (name + ", " + run["dtype"].get<std::string>() + ": loss of step " + std::to_string(i) + " is " +
            std::to_string(loss) + ", Python's " + std::to_string(expected))
               .c_str());
  }
  if (std::getenv("SHOW") && group.rank() == 0)
    std::cerr << group.size() << ' ' << name << ' ' << run["dtype"] << ' ' << largest << '\n';
  ensure(training.ddp.statistics().bucket_bytes == run["bucket_bytes"].get<std::vector<std::int64_t>>(),
         "buckets are Python's");
  if (power_sgd) {
    ensure(power_sgd->compression().elements_before == run["elements"][0], "elements before compression");
    ensure(power_sgd->compression().elements_after == run["elements"][1], "elements after compression");
  }
}

}  // namespace

TEST_CASE("fifty steps with each compression give the losses of Python's hooks", "[comm_hooks]") {
  const int size = GENERATE(2, 3);
  const auto runs = test::read_golden("comm_hooks/losses_" + std::to_string(size) + ".json");
  test::run_ranks(size, [&](const ProcessGroup& group) {
    use_same_arithmetic();
    for (const auto& run : runs) check_run(group, run);
  });
}
