#include <ddprun/flight/recording_backend.h>

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace ddprun::ddp {

Collective describe_call(const char* op, const Tensors& tensors, int peer) {
  Collective call{.op = op, .peer = peer};
  call.tensors = static_cast<std::int32_t>(tensors.size());
  for (const auto& tensor : tensors) {
    call.elements += tensor.numel();
    call.bytes +=
        tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());  // of a sparse one: if it were dense
  }
  if (tensors.empty()) return call;
  const auto& first = tensors.front();
  call.dtype = c10::toString(first.scalar_type());
  call.dims = static_cast<std::int32_t>(std::min<std::size_t>(first.sizes().size(), Collective::kMaxDims));
  std::copy_n(first.sizes().begin(), call.dims, call.shape.begin());
  return call;
}

Collective point_to_point(const char* op, const Tensors& tensors, int peer) {
  Collective call = describe_call(op, tensors, peer);
  call.point_to_point = true;
  return call;
}

}  // namespace ddprun::ddp
