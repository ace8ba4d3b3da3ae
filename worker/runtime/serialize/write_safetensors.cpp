#include <ATen/core/Tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text/in_quotes.h>
#include <ddprun/serialize/output_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/serialize/safetensors_dtype.h>

namespace ddprun::serialize {
namespace {

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Takes out the tensors that are the same memory as another one whose name comes first, and notes them.
NamedTensors without_tied(NamedTensors tensors, std::map<std::string, std::string>& metadata) {
  std::unordered_multimap<const void*, const std::pair<std::string, at::Tensor>*> by_memory;
  NamedTensors by_name = tensors;
  std::sort(by_name.begin(), by_name.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& item : by_name) {
    const auto [begin, end] = by_memory.equal_range(item.second.storage().unsafeGetStorageImpl());
    const auto first = std::find_if(
        begin, end, [&](const auto& other) { return same_memory(item.second, other.second->second); });
    if (first == end)
      by_memory.emplace(item.second.storage().unsafeGetStorageImpl(), &item);
    else
      metadata[item.first] = first->second->first;
  }
  std::erase_if(tensors, [&](const auto& item) { return metadata.contains(item.first); });
  return tensors;
}

void check(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::map<std::string, bool> names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta() ||
        safetensors_name(tensor.scalar_type()) == nullptr)
      throw std::invalid_argument(
          "tensor " + in_quotes(name) + " is of a kind that a .safetensors file cannot hold" +
          (tensor.defined() ? std::string(": ") + c10::toString(tensor.scalar_type()) : ""));
    if (name == "__metadata__" || metadata.contains(name) || !names.emplace(name, true).second)
      throw std::invalid_argument("tensor " + in_quotes(name) + " has a name that is in use in the file");
  }
}

/// The header with its length before it and blanks after it, so that the data are aligned.
std::string header_of(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", safetensors_name(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw std::invalid_argument("a tensor's name or the metadata are not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");
  check(tensors, metadata);
  auto kept = without_tied(tensors, metadata);
  // Larger elements first: every tensor is aligned.
  std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  const auto header = header_of(kept, metadata);
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    file.append(header.data(), header.size());
    for (const auto& [name, tensor] : kept) {
      const auto dense = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
      file.append(dense.const_data_ptr(), dense.nbytes());
    }
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
  });
}

}  // namespace ddprun::serialize
