#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace ddprun::serialize {

/// The element type of "F32" and its like; nothing for another name.
std::optional<c10::ScalarType> safetensors_dtype(std::string_view name);

/// The inverse; nullptr for a type that the format lacks.
const char* safetensors_name(c10::ScalarType dtype);

}  // namespace ddprun::serialize
