#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>

namespace ddprun::test {

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

inline const ddp::DistributedDataParallel::Options kSmallBuckets = {.bucket_bytes = 20'000,
                                                                    .first_bucket_bytes = 20'000};

/// One rank's training, as scripts/make_golden.py does it.
struct Training {
  explicit Training(const ddp::ProcessGroup& its_group, torch::Dtype its_dtype = torch::kFloat32)
      : group(its_group),
        dtype(its_dtype),
        net(make_net(its_dtype, its_group.device())),
        ddp(*net, its_group, kSmallBuckets) {
    torch::manual_seed(11);
    images = torch::randn({480, 1, 8, 8});
    labels = torch::avg_pool2d(images, 4).flatten(1).argmax(1);  // the brightest quarter
    images = images.to(dtype).to(group.device());
    labels = labels.to(group.device());
  }

  static Net make_net(torch::Dtype dtype, torch::Device device) {
    torch::manual_seed(7);
    Net net;
    net->to(device, dtype);
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

  const ddp::ProcessGroup& group;
  torch::Dtype dtype;
  Net net;
  ddp::DistributedDataParallel ddp;
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  torch::Tensor images, labels;
};

}  // namespace ddprun::test
