// Batches on their way to a GPU, on the fake one (fake_gpu.cpp).
#include <ddprun/data/loader.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <atomic>

#include <ddprun/common/errors.h>
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
