#include <torch/optim/sgd.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <tuple>

#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using test::Layer;
using test::LayerStack;

namespace {

/// One random model and a random way of training it, the same on every rank.
struct RandomModel {
  std::vector<Layer> layers;
  DistributedDataParallel::Options options;
  bool uneven = false;    ///< batches of different sizes, averaged over all samples
  bool branches = false;  ///< each rank and step uses an unused layer or does not
  int accumulate = 1;     ///< micro-batches a step
  double tolerance = 1e-11;
  std::mt19937_64 random;
};

RandomModel random_case(std::uint64_t seed) {
  RandomModel result;
  result.random.seed(seed);
  const auto pick = [&](int n) { return static_cast<int>(result.random() % static_cast<unsigned>(n)); };
  auto& options = result.options;
  options.gradient_as_bucket_view = pick(2) == 0;
  const int mode = pick(4);
  options.find_unused_parameters = mode == 1 || mode == 3;
  options.static_graph = mode == 2;
  result.branches = mode == 3;
  const std::int64_t sizes[] = {1, 100, 2000, 30000, options.bucket_bytes};
  options.bucket_bytes = sizes[pick(5)];
  if (pick(2) == 0) options.first_bucket_bytes = sizes[pick(4)];
  if (pick(5) == 0) options.bucket_bytes_list = {sizes[pick(4)], sizes[pick(4)]};
  result.uneven = pick(3) == 0;
  result.accumulate = 1 + pick(3);

  const int dtypes = pick(3);  // all double, all float, mixed
  if (dtypes != 0) result.tolerance = 2e-4;
  std::int64_t width = 1 + pick(20);
  for (int depth = 1 + pick(5), i = 0; i < depth; ++i) {
    Layer layer;
    layer.in = width;
    layer.uses = pick(4) == 0 ? 2 : 1;
    layer.out = layer.uses == 2 ? width : 1 + pick(40);
    layer.frozen = i > 0 && pick(5) == 0;
    layer.dtype = dtypes == 1 || (dtypes == 2 && pick(2) == 0) ? torch::kFloat32 : torch::kFloat64;
    width = layer.out;
    result.layers.push_back(layer);
    if (mode != 0 && pick(2) == 0) result.layers.push_back({width, width, layer.dtype, 0});
  }
  return result;
}

/// The batch of a rank in a micro-batch of a step, the same whoever asks.
torch::Tensor batch(const RandomModel& random, std::uint64_t seed, int step, int rank) {
  std::mt19937_64 generator(seed * 1000003 + static_cast<std::uint64_t>(step) * 101 +
                            static_cast<std::uint64_t>(rank));
  torch::manual_seed(generator());
  const auto rows = random.uneven ? 1 + static_cast<std::int64_t>(generator() % 5) : 3;
  return torch::randn({rows, random.layers.front().in}, torch::kFloat64);
}

/// The layer without a use that this rank applies in this step, or -1.
int branch(const RandomModel& random, int step, int rank) {
  if (!random.branches || (step + rank) % 3 == 0) return -1;
  for (std::size_t i = 0; i < random.layers.size(); ++i)
    if (random.layers[i].uses == 0) return static_cast<int>(i);
  return -1;
}

void run_case(std::uint64_t seed, const ProcessGroup& group) {
  RandomModel random = random_case(seed);
  LayerStack model(random.layers, seed + static_cast<std::uint64_t>(group.rank()));
  LayerStack reference(random.layers, seed);
  DistributedDataParallel ddp(model, group, random.options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const auto loss_of = [&](LayerStack& stack, int micro_step, int rank) {
    const auto output =
        stack.forward(batch(random, seed, micro_step, rank), branch(random, micro_step, rank));
    return output.pow(2).sum(1).mean() / random.accumulate;
  };
  for (int micro_step = 0; micro_step < 3 * random.accumulate; ++micro_step) {
    if (micro_step % random.accumulate == 0) {
      ddp.zero_grad();
      reference.zero_grad();
      test::copy_weights(model, reference);
    }
    std::vector<double> samples;
    for (int rank = 0; rank < group.size(); ++rank)
      samples.push_back(static_cast<double>(batch(random, seed, micro_step, rank).size(0)));
    const double all = std::accumulate(samples.begin(), samples.end(), 0.0);
    torch::Tensor expected = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < group.size(); ++rank)
      expected =
          expected + loss_of(reference, micro_step, rank) * (samples[static_cast<std::size_t>(rank)] / all);
    expected.backward();

    const bool last = (micro_step + 1) % random.accumulate == 0;
    const auto forward_backward = [&] {
      const auto compute = [&] { return loss_of(model, micro_step, group.rank()); };
      const auto own = static_cast<std::int64_t>(samples[static_cast<std::size_t>(group.rank())]);
      (random.uneven ? ddp.forward(compute, own) : ddp.forward(compute)).backward();
    };
    if (last) {
      forward_backward();
      test::check_same_gradients(model, reference, random.tolerance,
                                 "step " + std::to_string(micro_step / random.accumulate) + ": ");
      optimizer.step();
    } else {
      const auto guard = ddp.no_sync();
      forward_backward();
    }
  }
}

}  // namespace

TEST_CASE("gradients of random models on N ranks equal those of one rank on the union batch, in all modes",
          "[distributed_data_parallel]") {
  // More of them: DDPRUN_RANDOM_MODELS=100 for each world size, or one: DDPRUN_RANDOM_SEED=205.
  const char* more = std::getenv("DDPRUN_RANDOM_MODELS");
  const char* one = std::getenv("DDPRUN_RANDOM_SEED");
  const auto how = GENERATE(table<int, bool>({{1, true}, {2, true}, {3, true}, {4, true}, {3, false}}));
  const int size = std::get<0>(how);
  const test::SumsInMemory sums(std::get<1>(how));
  const std::uint64_t first =
      one != nullptr ? std::stoull(one) : static_cast<std::uint64_t>(1000 * (size == 1 ? 4 : size - 2));
  const std::uint64_t count = one != nullptr ? 1 : more != nullptr ? std::stoull(more) : size == 1 ? 4 : 12;
  test::run_ranks(size, [=](const ProcessGroup& group) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      try {
        run_case(seed, group);
      } catch (const std::exception& error) {
        throw std::runtime_error("world size " + std::to_string(size) + ", seed " + std::to_string(seed) +
                                 ": " + error.what());
      }
    }
  });
}
