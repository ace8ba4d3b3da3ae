#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/serialize/portable_value.h>

namespace ddprun::serialize {

/// Named tensors, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a .safetensors file holds.
struct Safetensors {
  NamedTensors tensors;                         ///< on the CPU, in the order of their data
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Whether the file begins like a .safetensors file: a header's length, then its opening brace.
bool is_safetensors(const std::filesystem::path& path);

/// Reads a .safetensors file. Tied weights, which the metadata list as additional names of a tensor
/// (safetensors.torch.save_model), come last and share that tensor's memory.
///
///   u64 (little endian) header length | {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
///   | data
///
/// throws  IoError naming path and what was expected: a header of at most 100 MB, data without holes or
///         overlaps
Safetensors read_safetensors(const std::filesystem::path& path);

/// Writes a .safetensors file, atomically. Of tensors that share the same memory it writes the first by name
/// and lists the others in the metadata, NAME: FIRST, as safetensors.torch.save_model does.
///
/// tensors   dense, on any device, with any strides
/// metadata  gets "format": "pt", which transformers requires
/// throws    IoError naming path; std::invalid_argument naming a tensor whose type the format lacks
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::map<std::string, std::string> metadata = {}, const ValueOf& value_of = {});

}  // namespace ddprun::serialize
