#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace ddprun::serialize {

/// What files call an element type; empty where a format has no name for it.
struct DtypeNames {
  std::string_view storage;      ///< Python's older, typed storages: "torch.FloatStorage"
  std::string_view dtype;        ///< "torch.float32"
  std::string_view safetensors;  ///< "F32"
  c10::ScalarType type;
};
DtypeNames names_of(c10::ScalarType dtype);

/// The element type with this name; nullopt if none. "torch.storage.UntypedStorage" holds bytes.
///
/// kind  which of the names, such as &DtypeNames::dtype
std::optional<c10::ScalarType> dtype_named(std::string_view name, std::string_view DtypeNames::*kind);

/// What is wrong with these bools, nullopt if nothing: bytes other than 0 and 1 are undefined behaviour.
std::optional<std::string> bad_bools(const void* bytes, std::size_t count);

}  // namespace ddprun::serialize
