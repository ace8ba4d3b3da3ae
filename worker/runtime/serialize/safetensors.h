#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddprun::serialize {

/// Tensors by name, in an order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a .safetensors file holds.
struct Safetensors {
  NamedTensors tensors;                         ///< in the order in which they lie in the file, on the CPU
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Whether the file begins as a .safetensors file does: the length of a header, then the header's brace.
bool is_safetensors(const std::filesystem::path& path);

/// Reads a .safetensors file. Names that its metadata give for a tensor that is there under another name
/// (tied weights, as safetensors.torch.save_model writes them) come last and share that one's memory.
///
///   u64 (little endian) header length | {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
///   | data
///
/// throws  IoError naming path and what was expected: a header of 100 MB at most, data without holes or
///         overlaps
Safetensors read_safetensors(const std::filesystem::path& path);

/// Writes a .safetensors file, atomically. Of tensors that are the same memory the first by name is written
/// and the others go into the metadata, NAME: FIRST, as safetensors.torch.save_model does it.
///
/// tensors   dense, on any device, of any strides
/// metadata  "format": "pt" is added, without which transformers refuses a file
/// throws    IoError naming path; std::invalid_argument naming a tensor whose type the format lacks
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::map<std::string, std::string> metadata = {});

}  // namespace ddprun::serialize
