#pragma once

// The fake GPU's memory (fake_gpu.cpp).
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ddprun::test::fake {

/// The variable's value "VALUE", or "VALUE@RANK" on that rank; else "".
inline std::string of_this_rank(const char* variable) {
  const auto* const value = std::getenv(variable);
  const auto* const rank = std::getenv("RANK");
  const std::string text = value == nullptr ? "" : value, own = text.substr(0, text.find('@'));
  return text == own || (rank != nullptr && text == own + "@" + rank) ? own : "";
}

/// Ends as LibTorch's allocator does, of whose message this is a part.
[[noreturn]] inline void no_memory(std::size_t wanted, std::size_t total, std::size_t allocated) {
  const auto mib = [](std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", mib(wanted),
                   ". GPU 0 has a total capacity of ", mib(total), " of which ", mib(total - allocated),
                   " is free. Of the allocated memory ", mib(allocated), " is allocated by PyTorch");
}

class Memory final : public c10::DeviceAllocator {
 public:
  explicit Memory(const c10::Device& gpu) : gpu_(gpu) {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  c10::DataPtr allocate(std::size_t bytes) override {
    static const auto limit = of_this_rank("FAKE_GPU_MEMORY");
    static const auto total = limit.empty() ? ~std::size_t{0} : std::size_t{std::stoul(limit)} << 20;
    if (bytes == 0) return {nullptr, nullptr, &release, gpu_};
    if (allocated_ + bytes > total) no_memory(bytes, total, allocated_);
    allocated_ += bytes;
    auto* const memory = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    std::memcpy(memory, &bytes, sizeof bytes);
    return {memory + kHeader, memory + kHeader, &release, gpu_};
  }
  static void release(void* memory) {
    if (memory == nullptr) return;
    std::size_t bytes = 0;
    std::memcpy(&bytes, static_cast<char*>(memory) - kHeader, sizeof bytes);
    allocated_ -= bytes;
    c10::free_cpu(static_cast<char*>(memory) - kHeader);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::size_t kHeader = 64;  // holds the size; keeps the alignment
  static inline std::atomic<std::size_t> allocated_ = 0;
  const c10::Device& gpu_;
};

}  // namespace ddprun::test::fake
