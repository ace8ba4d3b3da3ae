#include "tests/support/counted_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>

namespace ddprun::test {
namespace {

std::atomic<std::size_t> held = 0, peak = 0;

struct Block {
  c10::DataPtr data;
  std::size_t bytes;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  held -= block->bytes;
  delete block;
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), bytes};
    const std::size_t now = held += bytes;
    for (std::size_t known = peak; known < now && !peak.compare_exchange_weak(known, now);) {
    }
    return {block->data.get(), block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

void count_tensor_memory() {
  static auto* const allocator = new CountingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

std::size_t tensor_bytes() { return held; }

std::size_t take_peak_tensor_bytes() { return peak.exchange(held); }

}  // namespace ddprun::test
