#pragma once

#include <torch/types.h>

#include <filesystem>

#include <ddprun/data/image_dataset.h>

namespace ddprun::data {

/// The content of a plain or gzip file, whichever it is: bytes (uint8) of shape [size]. Refuses a gzip file
/// that is truncated, has a wrong checksum or is followed by anything but another gzip file.
///
/// throws  IoError naming the file, also for more than 8 GiB
at::Tensor read_plain_or_gzip(const std::filesystem::path& path);

/// Reads an IDX file of unsigned bytes (gzip or plain) with the given number of dimensions.
///
/// MNIST's format: two zero bytes, 0x08 for unsigned bytes, the number of dimensions, each size as a
/// big-endian 32-bit integer, then the values.
///
/// returns  uint8 tensor of the file's shape
/// throws   IoError naming the file: wrong magic number or dimensions, too few or too many bytes, bad gzip
torch::Tensor read_idx(const std::filesystem::path& path, int dimensions);

/// Reads images with class labels from the four files of MNIST or Fashion-MNIST (`train-images-idx3-ubyte`,
/// `t10k-labels-idx1-ubyte`, ...; each with or without .gz).
///
/// limit    keep only the first `limit` examples; 0 keeps all
/// returns  images_NCHW [N, 1, 28, 28], labels 0 .. 9
/// throws   IoError naming the missing or invalid file
Images read_mnist(const std::filesystem::path& folder, Part part, std::int64_t limit = 0);

/// Mean and standard deviation of MNIST's training pixels, which PyTorch's example uses for every data set.
inline constexpr float kMnistMean = 0.1307f, kMnistStd = 0.3081f;

/// MNIST or Fashion-MNIST with `input = (pixel / 255 - mean) / std`, without augmentation.
class IdxDataset : public ImageDataset {
 public:
  /// throws  as read_mnist
  IdxDataset(const std::filesystem::path& folder, Part part, float mean, float std, std::int64_t limit = 0)
      : ImageDataset(read_mnist(folder, part, limit), ImageTransform({.mean = {mean}, .std = {std}})) {}
};

}  // namespace ddprun::data
