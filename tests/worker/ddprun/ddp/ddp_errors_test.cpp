#include <stdexcept>

#include <torch/nn/modules/conv.h>

#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using test::LayerStack;

namespace {

template <typename Error, typename Body>
void check_throws(Body&& body, const std::vector<std::string>& expected) {
  std::string message = "nothing";
  try {
    body();
  } catch (const Error& error) {
    message = error.what();
  }
  for (const auto& text : expected)
    ensure(message.find(text) != std::string::npos,
           ("expected '" + text + "' thrown, got: " + message).c_str());
}

const auto kInput = [] { return torch::ones({2, 3}, torch::kFloat64); };

}  // namespace

TEST_CASE("an unused parameter without find_unused is named in the next forward",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 4, torch::kFloat64, 0}, {4, 2}});
    DistributedDataParallel ddp(model, group);
    const auto step = [&] { ddp.forward([&] { return model.forward(kInput()).sum(); }).backward(); };
    step();
    check_throws<c10::Error>(step, {"find_unused_parameters", "layers.1.weight", "layers.1.bias"});
  });
}

TEST_CASE("a static graph that changes is an error", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 4, torch::kFloat64, 0}, {4, 2}});
    DistributedDataParallel::Options options;
    options.static_graph = true;
    DistributedDataParallel ddp(model, group, options);
    const auto step = [&](int also) {
      ddp.forward([&] { return model.forward(kInput(), also).sum(); }).backward();
    };
    step(-1);
    check_throws<c10::Error>([&] { step(1); }, {"graph has changed", "static_graph"});
  });
}

TEST_CASE("backward twice is autograd's error, and a forward without backward changes nothing",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 2}}), reference(model.layers());
    DistributedDataParallel ddp(model, group);
    const auto forward = [&] { return ddp.forward([&] { return model.forward(kInput()).sum(); }); };
    const auto loss = forward();
    loss.backward();
    check_throws<c10::Error>([&] { loss.backward(); }, {"backward through the graph a second time"});
    ddp.zero_grad();
    forward();
    forward().backward();
    reference.forward(kInput()).sum().backward();
    test::check_same_gradients(model, reference, 1e-12);
  });
}

TEST_CASE("parameters that are not contiguous are trained as others are", "[distributed_data_parallel]") {
  test::run_ranks(2, [&](const ProcessGroup& group) {
    torch::nn::Linear plain(3, 4), linear(3, 4);
    plain->to(torch::kFloat64);
    linear->to(torch::kFloat64);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.set_data(plain->weight.t().contiguous().t());
      linear->bias.set_data(plain->bias.clone());
    }
    if (linear->weight.is_contiguous()) throw std::runtime_error("contiguous");
    DistributedDataParallel ddp(*linear, group);
    for (int step = 0; step < 2; ++step) {
      linear->zero_grad();
      plain->zero_grad();
      const auto loss = [&](torch::nn::Linear& of, double scale) {
        return (of->forward(scale * kInput()) * torch::arange(4)).sum();
      };
      ddp.forward([&] { return loss(linear, group.rank() + 1); }).backward();
      loss(plain, 1).backward();
      loss(plain, 2).backward();
      for (const auto& parameter : plain->parameters()) parameter.mutable_grad() /= 2;
      test::check_same_gradients(*linear, *plain, 1e-12);
    }
  });
}

TEST_CASE("ranks whose parameters differ in type, strides or layout are refused",
          "[distributed_data_parallel]") {
  const auto refused = [](const ProcessGroup& group, torch::nn::Module& module, const std::string& expected) {
    check_throws<std::invalid_argument>([&] { DistributedDataParallel ddp(module, group); }, {expected});
  };
  test::run_ranks(3, [&](const ProcessGroup& group) {
    torch::nn::Linear linear(4, 3);
    if (group.rank() == 2) linear->to(torch::kFloat64);
    refused(group, *linear, "rank 0 has parameter weight [3, 4] float, unlike rank 2");

    torch::nn::Conv2d convolution(2, 2, 3);
    if (group.rank() != 0) {
      torch::NoGradGuard no_grad;
      convolution->weight.set_data(convolution->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    }
    refused(group, *convolution, "rank 0 has parameter weight [2, 2, 3, 3] float, unlike ranks 1 and 2");

    torch::nn::Linear named(4, 3);
    struct Other : torch::nn::Module {
      explicit Other(bool other) { register_parameter(other ? "scale" : "weight", torch::ones({3})); }
    };
    Other other(group.rank() == 1);
    refused(group, other, "rank 0 has parameter weight [3] float, unlike rank 1");
  });
}

TEST_CASE("sparse parameters, several devices and empty buckets are refused", "[distributed_data_parallel]") {
  test::run_ranks(2, [&](const ProcessGroup& group) {
    struct Module : torch::nn::Module {
      explicit Module(const torch::Tensor& second) {
        register_parameter("first", torch::ones({2, 2}));
        register_parameter("second", second);
      }
    };
    Module sparse(torch::ones({2, 2}).to_sparse()), elsewhere(torch::ones({2, 2}, torch::kMeta));
    check_throws<std::invalid_argument>([&] { DistributedDataParallel ddp(sparse, group); },
                                        {"expected dense parameters, second is Sparse"});
    check_throws<std::invalid_argument>([&] { DistributedDataParallel ddp(elsewhere, group); },
                                        {"first is on cpu, second on meta"});
    Module module(torch::ones({1}));
    DistributedDataParallel::Options options;
    options.bucket_bytes = 0;
    check_throws<std::invalid_argument>([&] { DistributedDataParallel ddp(module, group, options); },
                                        {"at least 1 byte, got 0"});
  });
}
