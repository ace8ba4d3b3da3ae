#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {

/// A tensor's view of its storage as a pickle states it, unchecked: an int and two tuples of ints.
struct TensorGeometry {
  const c10::IValue& offset;
  const c10::IValue& size;
  const c10::IValue& stride;
};

/// The element type of "torch.FloatStorage" etc., a byte for "torch.storage.UntypedStorage"; nullopt for
/// other names.
std::optional<c10::ScalarType> storage_dtype(std::string_view name);

/// Whether Python's older, typed storages include this element type.
bool has_storage_name(c10::ScalarType dtype);

/// The element type of "torch.float32" etc.; nullopt for other names.
std::optional<c10::ScalarType> dtype_named(std::string_view name);

/// What is wrong with a storage of bools: bytes other than 0 and 1 are undefined behaviour in C++. nullopt:
/// nothing.
std::optional<std::string> bad_bools(const void* bytes, std::size_t count);

/// Why a tensor cannot lie in a storage like this; nullopt if it can.
std::optional<std::string> problem(const TensorGeometry& geometry, const StorageReference& storage);

/// The tensor; problem() must have found nothing.
at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype, const TensorGeometry& geometry);

}  // namespace ddprun::serialize
