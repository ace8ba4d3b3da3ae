#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {

/// A tensor's view of its storage, as a pickle gives it: an int, a tuple of ints, a tuple of ints, unchecked.
struct TensorGeometry {
  const c10::IValue& offset;
  const c10::IValue& size;
  const c10::IValue& stride;
};

/// The element type of "torch.FloatStorage" and its like, a byte for "torch.storage.UntypedStorage"; nothing
/// for another name.
std::optional<c10::ScalarType> storage_dtype(std::string_view name);

/// Whether there is a storage of this element type in Python's older, typed form.
bool has_storage_name(c10::ScalarType dtype);

/// The element type of "torch.float32" and its like; nothing for another name.
std::optional<c10::ScalarType> dtype_named(std::string_view name);

/// What is wrong with the bytes of a storage of bools: another value is undefined behaviour in C++. Nothing
/// when all is well.
std::optional<std::string> bad_bools(const void* bytes, std::size_t count);

/// Why such a tensor cannot lie in such a storage; nothing when it can.
std::optional<std::string> misfit(const TensorGeometry& geometry, const StorageReference& storage);

/// The tensor. geometry must not be a misfit.
at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype, const TensorGeometry& geometry);

}  // namespace ddprun::serialize
