// SharedSum under ThreadSanitizer: threads are the ranks, and their memory is one mapping of this process, so
// that every read and write of it is seen. Exits with another status than 0 after a race or a wrong sum.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/full.h>
#include <sys/mman.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ddprun/group/shared_sum.h>

// LibTorch's additions are not instrumented: these take their places, for SharedSum's tensors of floats.
namespace at::_ops {

Tensor& add_out::call(const Tensor& a, const Tensor& b, const Scalar&, Tensor& out) {
  const auto* const left = a.const_data_ptr<float>();
  const auto* const right = b.const_data_ptr<float>();
  auto* const sum = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) sum[i] = left[i] + right[i];
  return out;
}

Tensor& add__Tensor::call(Tensor& a, const Tensor& b, const Scalar& alpha) {
  return add_out::call(a, b, alpha, a);
}

}  // namespace at::_ops

namespace ddprun::ddp {
namespace {

std::byte* memory_of_all_ranks = nullptr;

}  // namespace

// In place of those between processes.
SharedMemory::~SharedMemory() = default;
bool SharedMemory::has_ended(int) const { return false; }
std::unique_ptr<SharedMemory> share_memory(const StorePtr&, int, int, std::size_t bytes, bool) {
  std::unique_ptr<SharedMemory> memory(new SharedMemory);
  memory->data_ = memory_of_all_ranks;
  memory->bytes_ = bytes;
  return memory;
}

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "shared_sum_tsan: " << what << std::endl;
  std::_Exit(EXIT_FAILURE);
}

/// Until the call is finished, as LocalAllReduce's thread.
void finish(SharedSum& sum) {
  for (;;) {
    const auto posts = sum.posts();
    if (sum.advance()) return;
    if (!sum.problem().empty()) fail("waits in vain");
    sum.sleep(posts);
  }
}

void check_sum(SharedSum& sum, int rank, int size, std::int64_t elements, std::uint64_t number) {
  const auto tensor = at::full({elements}, static_cast<float>(rank + 1));
  sum.begin(tensor, number);
  finish(sum);
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  const auto* const values = tensor.const_data_ptr<float>();
  for (std::int64_t i = 0; i < elements; ++i)
    if (values[i] != expected) fail("another sum than " + std::to_string(expected));
}

/// One rank makes another call than the others: all throw.
void check_other_call(SharedSum& sum, int rank, std::uint64_t number) {
  const auto tensor = at::full({rank == 1 ? 7 : 8}, 1.0F);
  sum.begin(tensor, number);
  try {
    finish(sum);
  } catch (const c10::Error&) {
    return;
  }
  fail("another call was not told");
}

void run_rank(int rank, int size) {
  SharedSum sum(share_memory({}, rank, size, SharedSum::bytes(size), true), rank, size);
  std::uint64_t number = 0;
  // Some pieces of a MiB, a short one last; one element; and one piece that is full.
  for (int round = 0; round < 3; ++round)
    for (const std::int64_t elements : {600'000, 1, 262'144, 100})
      check_sum(sum, rank, size, elements, ++number);
  check_other_call(sum, rank, ++number);
  check_sum(sum, rank, size, 300'000, ++number);
  std::thread([&] { sum.leave(); }).join();
  if (!sum.has_left()) fail("has not left");
}

void run_ranks(int size) {
  const auto bytes = SharedSum::bytes(size);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("no memory");
  memory_of_all_ranks = static_cast<std::byte*>(data);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(run_rank, rank, size);
  ranks.clear();
  ::munmap(data, bytes);
}

}  // namespace
}  // namespace ddprun::ddp

int main() {
  // Each adds up everything for itself, or all of them together.
  for (const int size : {2, 3, 6}) ddprun::ddp::run_ranks(size);
}
