#include <ddprun/serialize/snapshot_memory.h>

#include <ATen/ops/empty.h>

#include <cstdint>

namespace ddprun::serialize {

at::Tensor SnapshotMemory::take(std::size_t count, bool pinned) {
  if (next_ == buffers_.size()) buffers_.emplace_back();
  auto& buffer = buffers_[next_++];
  if (buffer.bytes.defined() && buffer.bytes.nbytes() == count && buffer.pinned == pinned)
    return buffer.bytes;
  buffer = {};  // first, for its memory
  const auto options = at::TensorOptions(at::kByte).pinned_memory(pinned);
  buffer = {at::empty({static_cast<std::int64_t>(count)}, options), pinned};
  return buffer.bytes;
}

std::size_t SnapshotMemory::bytes() const {
  std::size_t sum = 0;
  for (const auto& buffer : buffers_) sum += buffer.bytes.nbytes();
  return sum;
}

}  // namespace ddprun::serialize
