#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>

namespace ddprun::train {

/// A number for a tensor's shape and bytes, and for what came before. For telling contents apart, not for
/// secrets.
std::uint64_t digest(const at::Tensor& tensor, std::uint64_t before = 0);

/// Results that take long to compute, in a folder: each in a file that is named by what it was computed from,
/// for other runs and ranks as well.
class TensorCache {
 public:
  /// folder   made if need be
  /// version  of how results are computed: those of another are not used
  /// throws   IoError if the folder cannot be made
  TensorCache(std::filesystem::path folder, std::uint64_t version);

  /// What compute() gave for this input, now or earlier: on the CPU.
  /// A damaged file is made anew. throws IoError for one that cannot be written
  at::Tensor get(const at::Tensor& input, const std::function<at::Tensor()>& compute) const;

 private:
  std::filesystem::path folder_;
  std::uint64_t version_;
};

}  // namespace ddprun::train
