#pragma once

#include <torch/types.h>

#include <filesystem>

#include "worker/data/dataset.h"

namespace ddprun::data {

/// Reads an IDX file of unsigned bytes (gzip or plain) with the given number of dimensions.
///
/// The format is that of MNIST: two zero bytes, 0x08 for unsigned bytes, the number of dimensions, each size
/// as a big-endian 32-bit integer, then the values.
///
/// returns  uint8 tensor of the file's shape
/// throws   IoError naming the file: wrong magic number or number of dimensions, too few or too many bytes,
/// bad gzip
torch::Tensor read_idx(const std::filesystem::path& path, int dimensions);

/// Which of the two parts of an MNIST-like folder.
enum class Part { kTrain, kTest };

/// Images with class labels from the four files of MNIST or Fashion-MNIST (`train-images-idx3-ubyte`,
/// `t10k-labels-idx1-ubyte`, ...; each with or without .gz), held in memory as bytes.
class IdxDataset : public Dataset {
 public:
  /// mean, std  of the pixels scaled to [0, 1]: input = (pixel / 255 - mean) / std
  /// limit      keep only the first `limit` examples; 0 keeps all
  /// throws     IoError naming the file that is missing or wrong
  IdxDataset(const std::filesystem::path& folder, Part part, float mean, float std, std::int64_t limit = 0);

  std::int64_t size() const override { return images_NHW_.size(0); }
  /// input float [B, 1, 28, 28], target int64 [B] in 0..9
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;

 private:
  torch::Tensor images_NHW_;  // uint8
  torch::Tensor labels_N_;    // int64
  float mean_, std_;
};

}  // namespace ddprun::data
