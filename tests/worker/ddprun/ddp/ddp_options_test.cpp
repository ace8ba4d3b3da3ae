#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <map>
#include <stdexcept>
#include <tuple>

#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using test::LayerStack;

namespace {

/// Rank r's batch.
torch::Tensor batch(int rank, std::int64_t width = 3) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
  return torch::randn({4, width}, torch::kFloat64);
}

/// Gradients of the mean over ranks of loss(rank), in one process.
template <typename Loss>
void backward_of_all(int ranks, Loss loss) {
  torch::Tensor sum;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto term = loss(rank) / ranks;
    sum = sum.defined() ? sum + term : term;
  }
  sum.backward();
}

/// A layer for every output but the last, which two share.
struct Heads : torch::nn::Module {
  Heads() {
    torch::manual_seed(5);
    for (const char* name : {"a", "b", "c"}) heads.push_back(register_module(name, torch::nn::Linear(3, 2)));
    to(torch::kFloat64);
  }
  torch::Tensor head(int which, const torch::Tensor& x) {
    return heads[static_cast<std::size_t>(which)](x).tanh();
  }
  std::vector<torch::nn::Linear> heads;
};

struct TwoOutputs {
  torch::Tensor first, second;
  int number = 3;
};
void visit_tensors(TwoOutputs& outputs, const ddp::TensorVisitor& visit) {
  visit(outputs.first);
  visit(outputs.second);
}

}  // namespace

TEST_CASE("find_unused sees outputs of any kind, and those that the loss does not use",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    Heads model, reference;
    DistributedDataParallel::Options options;
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(model, group, options);
    const auto x = batch(group.rank());
    // Head c has no part in the forward pass. The loss uses a alone; b is in the output for nothing.
    backward_of_all(2, [&](int rank) { return reference.head(0, batch(rank)).sum(); });
    const auto check = [&](const torch::Tensor& used) {
      used.sum().backward();
      test::check_same_gradients(model, reference, 1e-12);
      ddp.zero_grad();
    };
    check(ddp.forward([&] { return model.head(0, x); }));
    check(std::get<0>(ddp.forward([&] { return std::make_tuple(model.head(0, x), 1.5, model.head(1, x)); })));
    check(ddp.forward([&] { return std::vector{model.head(0, x), model.head(1, x)}; })[0]);
    check(ddp.forward([&] {
               return std::map<std::string, torch::Tensor>{{"a", model.head(0, x)}, {"b", model.head(1, x)}};
             })
              .at("a"));
    check(*std::get<1>(ddp.forward(
        [&] { return std::pair(std::array{model.head(1, x)}, std::optional(model.head(0, x))); })));
    const auto outputs = ddp.forward([&] { return TwoOutputs{model.head(0, x), model.head(1, x)}; });
    ensure(outputs.number == 3, "the rest of the output is as it was");
    check(outputs.first);
    struct Unknown {
      torch::Tensor output;
    };
    std::string message;
    try {
      ddp.forward([&] { return Unknown{model.head(0, x)}; });
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    ensure(message.find("visit_tensors") != std::string::npos, "an output without visit_tensors is refused");
  });
}

TEST_CASE("without init_sync each rank begins with its own parameters and buffers",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    for (const bool sync : {true, false}) {
      torch::nn::BatchNorm1d model(3);
      {
        const torch::NoGradGuard no_grad;
        model->weight.fill_(group.rank() + 1);
        model->running_mean.fill_(group.rank() + 1);
      }
      const DistributedDataParallel ddp(*model, group, {.init_sync = sync});
      const auto expected = sync ? 1 : group.rank() + 1;
      ensure(model->weight.eq(expected).all().item<bool>(), "the weight");
      ensure(model->running_mean.eq(expected).all().item<bool>(), "the buffer");
    }
  });
}

TEST_CASE("zero_grad works where the optimizer's cannot, and leaves no gradient",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 2}});
    DistributedDataParallel::Options options;
    options.gradient_as_bucket_view = true;
    DistributedDataParallel ddp(model, group, options);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    ddp.forward([&] { return model.forward(batch(group.rank())).sum(); }).backward();
    bool thrown = false;
    try {
      optimizer.zero_grad();
    } catch (const c10::Error&) {
      thrown = true;
    }
    ensure(thrown, "LibTorch's own zero_grad still cannot: our advice against it is needed");
    ddp.zero_grad();
    for (const auto& parameter : model.parameters()) ensure(!parameter.grad().defined(), "no gradient");
  });
}

TEST_CASE("a static graph needs nothing of the user: gradients are right from the first step on",
          "[distributed_data_parallel]") {
  const bool view = GENERATE(false, true);
  test::run_ranks(2, [view](const ProcessGroup& group) {
    // A layer used twice, one not used, and outputs in a type that nothing knows of.
    LayerStack model({{3, 4}, {4, 4, torch::kFloat64, 2}, {4, 4, torch::kFloat64, 0}, {4, 2}});
    LayerStack reference(model.layers());
    DistributedDataParallel::Options options;
    options.static_graph = true;
    options.gradient_as_bucket_view = view;
    options.bucket_bytes = 100;
    DistributedDataParallel ddp(model, group, options);
    for (int step = 0; step < 5; ++step) {
      reference.zero_grad();
      backward_of_all(2, [&](int rank) { return reference.forward(batch(rank)).sum(); });
      ddp.zero_grad();
      struct Output {
        torch::Tensor value;
      };
      ddp.forward([&] { return Output{model.forward(batch(group.rank()))}; }).value.sum().backward();
      test::check_same_gradients(model, reference, 1e-12, "step " + std::to_string(step) + ": ");
    }
    ensure(ddp.statistics().buckets_rebuilt, "buckets are rebuilt");
  });
}

TEST_CASE("what is to be ignored stays each rank's own", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 2}}, 7 + static_cast<std::uint64_t>(group.rank()));
    LayerStack alone(model.layers(), 7 + static_cast<std::uint64_t>(group.rank()));
    DistributedDataParallel::Options options;
    options.ignore = {"layers.1.weight"};
    DistributedDataParallel ddp(model, group, options);
    const auto own = model.named_parameters()["layers.1.weight"];
    ensure(own.equal(alone.named_parameters()["layers.1.weight"]), "values are not rank 0's");
    test::copy_weights(model, alone);
    alone.forward(batch(group.rank())).sum().backward();
    ddp.forward([&] { return model.forward(batch(group.rank())).sum(); }).backward();
    ensure(own.grad().equal(alone.named_parameters()["layers.1.weight"].grad()), "nor the gradient");
    ensure(!model.named_parameters()["layers.0.weight"].grad().equal(
               alone.named_parameters()["layers.0.weight"].grad()),
           "the others are reduced");
    options.ignore = {"layers.7.weight"};
    bool thrown = false;
    try {
      DistributedDataParallel refused(model, group, options);
    } catch (const std::invalid_argument& error) {
      thrown = std::string(error.what()).find("layers.7.weight") != std::string::npos;
    }
    ensure(thrown, "an unknown name is refused");
  });
}

TEST_CASE("sparse gradients are reduced", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto make = [] {
      torch::manual_seed(2);
      return torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true));
    };
    auto model = make(), reference = make();
    const auto loss = [](torch::nn::Embedding& embedding, int rank) {
      return embedding(torch::tensor({0, 2 + rank, 2 + rank})).pow(2).sum();
    };
    DistributedDataParallel ddp(*model, group);
    for (int step = 0; step < 3; ++step) {
      reference->zero_grad();
      backward_of_all(2, [&](int rank) { return loss(reference, rank); });
      ddp.zero_grad();
      ddp.forward([&] { return loss(model, group.rank()); }).backward();
      ensure(model->weight.grad().to_dense().allclose(reference->weight.grad().to_dense()),
             "sparse gradient");
    }
  });
}

TEST_CASE("models in bf16, and with parameters of several types, are reduced",
          "[distributed_data_parallel]") {
  const bool mixed = GENERATE(false, true);
  const auto half = GENERATE(torch::kBFloat16, torch::kFloat16);
  test::run_ranks(3, [=](const ProcessGroup& group) {
    const std::vector<test::Layer> layers = {
        {3, 30, half}, {30, 30, mixed ? torch::kFloat32 : half}, {30, 2, half}};
    LayerStack model(layers), reference(layers);
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      backward_of_all(3, [&](int rank) { return reference.forward(batch(rank)).to(torch::kFloat32).sum(); });
      ddp.zero_grad();
      ddp.forward([&] { return model.forward(batch(group.rank())).to(torch::kFloat32).sum(); }).backward();
      test::check_same_gradients(model, reference, 0.03);
    }
    ensure(ddp.statistics().bucket_bytes.size() == (mixed ? 2u : 1u), "a bucket for each type");
  });
}

TEST_CASE("buckets of unused parameters can be left out of the reduction", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 4, torch::kFloat64, 0}, {4, 2}}), reference(model.layers());
    DistributedDataParallel::Options options;
    options.find_unused_parameters = options.skip_all_reduce_unused_parameters = true;
    options.bucket_bytes = 1;  // one for each parameter
    DistributedDataParallel ddp(model, group, options);
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      backward_of_all(2, [&](int rank) { return reference.forward(batch(rank)).sum(); });
      ddp.zero_grad();
      ddp.forward([&] { return model.forward(batch(group.rank())).sum(); }).backward();
      test::check_same_gradients(model, reference, 1e-12);
    }
    ensure(ddp.statistics().unused_bytes == (16 + 4) * 8, "the unused layer's bytes");
  });
}

TEST_CASE("a single process has no reducer and needs no connections", "[distributed_data_parallel]") {
  const HeldPort port;
  test::fork_ranks(1, [&](int) {
    auto group = ProcessGroup::connect(test::rank_env(port, 0, 1), {});
    group.close();  // from here on the group's handle throws
    LayerStack model({{3, 4}, {4, 4, torch::kFloat64, 0}, {4, 2}}), reference(model.layers());
    DistributedDataParallel::Options options;
    options.static_graph = options.gradient_as_bucket_view = true;
    DistributedDataParallel ddp(model, group, options);
    auto join = ddp.join({});
    reference.forward(batch(0)).sum().backward();
    ddp.forward([&] { return model.forward(batch(0)).sum(); }, 4).backward();
    test::check_same_gradients(model, reference, 0);
    join.finish();
    ddp.synchronize_buffers();
    const auto statistics = ddp.statistics();
    ensure(statistics.bucket_bytes.empty() && statistics.backend.empty() && statistics.iteration == 0,
           "there are no statistics");
  });
}

TEST_CASE("with samples given, gradients are the mean over all samples, and values stay the rank's",
          "[distributed_data_parallel]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    const std::vector<std::int64_t> sizes = {4, 1, 2};
    LayerStack model({{3, 4}, {4, 2}}), reference(model.layers());
    const auto part = [&](int rank) {
      return batch(rank).slice(0, 0, sizes[static_cast<std::size_t>(rank)]);
    };
    reference.forward(torch::cat({part(0), part(1), part(2)})).sum(1).mean().backward();
    const auto value = reference.forward(part(group.rank())).sum(1).mean();
    DistributedDataParallel ddp(model, group);
    const auto loss = ddp.forward([&] { return model.forward(part(group.rank())).sum(1).mean(); },
                                  sizes[static_cast<std::size_t>(group.rank())]);
    ensure(loss.equal(value), "the loss is this rank's mean");
    loss.backward();
    test::check_same_gradients(model, reference, 1e-12);
  });
}
