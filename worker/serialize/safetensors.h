#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddprun::serialize {

/// Whether the file begins as a .safetensors file does: the length of a header, then the header's brace.
bool is_safetensors(const std::filesystem::path& path);

/// The tensors of a .safetensors file, in the order in which they lie in it, on the CPU.
///
///   u64 (little endian) header length | {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
///   | data
///
/// throws  IoError naming path and what was expected: a header of 100 MB at most, data without holes or
/// overlaps
std::vector<std::pair<std::string, at::Tensor>> read_safetensors(const std::filesystem::path& path);

}  // namespace ddprun::serialize
