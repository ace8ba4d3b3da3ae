#include "worker/sam/tensor_cache.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/safetensors.h>

namespace ddprun::train {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return hash ^ (hash >> 32);
}

/// nullopt if there is none, or a damaged one, which is written anew then.
std::optional<at::Tensor> read(const std::filesystem::path& path) {
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return std::nullopt;
  try {
    const auto found = serialize::read_safetensors(path).tensors;
    if (found.size() == 1) return found[0].second;
  } catch (const IoError&) {
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t digest(const at::Tensor& tensor, std::uint64_t before) {
  const auto plain = tensor.detach().cpu().contiguous();
  auto hash = mixed(before, plain.nbytes() + 1);
  for (const auto size : plain.sizes()) hash = mixed(hash, static_cast<std::uint64_t>(size));
  const auto* bytes = static_cast<const char*>(plain.const_data_ptr());
  const auto count = plain.nbytes();
  for (std::size_t i = 0; i < count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<std::size_t>(8, count - i));
    hash = mixed(hash, word);
  }
  return hash;
}

TensorCache::TensorCache(std::filesystem::path folder, std::uint64_t version)
    : folder_(std::move(folder)), version_(version) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw IoError(folder_, "cannot be made", error.value());
}

at::Tensor TensorCache::get(const at::Tensor& input, const std::function<at::Tensor()>& compute) const {
  char name[64];
  std::snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 ".safetensors", version_, digest(input));
  const auto path = folder_ / name;
  if (const auto found = read(path)) return *found;
  const auto result = compute().cpu();
  serialize::write_safetensors(path, {{"result", result}});
  return result;
}

}  // namespace ddprun::train
