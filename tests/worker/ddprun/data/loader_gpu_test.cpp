// Batches on their way to a GPU, on the fake one (fake_gpu.cpp).
#include <ddprun/data/loader.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <atomic>

#include <ddprun/common/errors.h>
#include <ddprun/group/step_graph.h>
#include <ddprun/run/context.h>
#include <ddprun/run/data_loader.h>
#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"

using namespace ddprun;

namespace {

c10::StreamId stream_here(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

struct Numbers : data::Dataset {
  explicit Numbers(at::Device device) : device(device) {}
  std::int64_t size() const override { return 12; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto numbers = torch::tensor(indices, torch::kFloat) + 1;
    return {numbers, numbers.clone()};
  }
  data::Batch prepare(data::Batch raw) const override {
    stream = stream_here(device);
    return raw;
  }
  at::Device device;
  mutable std::atomic<c10::StreamId> stream = 0;
};

}  // namespace

TEST_CASE("a batch travels to the GPU on another stream, for which the current one waits",
          "[fake_gpu_data]") {
  test::on_fake_gpus(1, [](const ddp::ProcessGroup& group) {
    const Numbers numbers(group.device());
    data::Loader loader(numbers, {.batch_size = 4, .threads = 1, .device = group.device()});
    loader.start_epoch({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    for (float first = 1; const auto batch = loader.next(); first += 4)
      ensure(batch->target.is_cuda() && batch->target.cpu().equal(torch::arange(first, first + 4)), "values");
    ensure(numbers.stream != stream_here(group.device()), "another stream");
  });
}

TEST_CASE("no loader gets the stream on which a step is captured", "[fake_gpu_data]") {
  test::on_fake_gpus(1, [](const ddp::ProcessGroup& group) {
    const ddp::StepGraph graph(group);
    const auto captured = stream_here(group.device());
    for (int thread = 0; thread < 80; ++thread) {
      const Numbers numbers(group.device());
      data::Loader loader(numbers, {0, 1, 2, 3}, 4, /*threads=*/1, group.device());
      ensure(loader.next() && numbers.stream != captured, "another stream");
    }
  });
}

TEST_CASE("a batch's fields may be undefined on the way to a GPU", "[fake_gpu_data]") {
  struct Optional : Numbers {
    using Numbers::Numbers;
    data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
      auto batch = Numbers::get_batch(indices);
      batch.extra = {at::Tensor(), batch.target};
      return batch;
    }
  };
  test::on_fake_gpus(1, [](const ddp::ProcessGroup& group) {
    const Optional numbers(group.device());
    data::Loader loader(numbers, {0, 1, 2, 3}, 4, /*threads=*/1, group.device());
    const auto batch = loader.next();
    ensure(batch && !batch->extra.at(0).defined() && batch->extra.at(1).is_cuda(), "the other one travels");
    ensure(batch->with(batch->tensors()).extra.at(1).is_same(batch->extra[1]), "each in its place");

    struct OwnSet {
      std::int64_t size() const { return 4; }
      std::vector<at::Tensor> get_batch(const std::vector<std::int64_t>& indices) const {
        return {torch::tensor(indices), at::Tensor()};
      }
    };
    WorkerEnv env;
    const Context context(env, group);
    DataLoader own(context, OwnSet(), {.batch_size = 2});
    int batches = 0;
    for (const auto& tensors : own.epoch(0)) {
      ensure(tensors.at(0).is_cuda() && !tensors.at(1).defined(), "the one that is there travels");
      ++batches;
    }
    ensure(batches == 2, "all batches");

    ddp::StepGraph graph(group);
    const auto step = [](const auto& inputs) { return inputs[1].defined() ? at::Tensor() : inputs[0] + 1; };
    for (int i = 0; i < 15; ++i) {
      const auto sum = graph.run({torch::full({1}, i).to(group.device()), at::Tensor()}, step);
      ensure(sum.cpu().item<std::int64_t>() == i + 1, "the step's result");
    }
  });
}
