#pragma once

#include <torch/types.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/data/image_dataset.h>

namespace ddprun::data {

/// The folder of a data set known by name. Looks in $DDPRUN_DATA, the cache folder's data/ (where
/// scripts/get_data.sh puts it), /usr/share/datasets (distribution packages), and share/ddprun beside the
/// programs' bin/ ("nuclei-sample").
///
/// returns  nullopt if none of them has it
std::optional<std::filesystem::path> find_dataset(const std::string& name);

/// Resolves `--data`: a data set's name, a folder, or, if empty, the first of the names found.
///
/// names   the data sets that a task can train on, the default first
/// throws  UsageError if the data set is not found, or, with an empty source, none of them
std::filesystem::path find_data(const std::string& source, const std::vector<std::string>& names);

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

/// The names of labels 0 .. 9.
inline constexpr std::array kCifar10Classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                                               "dog",      "frog",       "horse", "ship", "truck"};

/// Of the training pixels scaled to [0, 1]. The usual values: the standard deviation is the mean of the
/// per-image deviations.
inline constexpr std::array kCifar10Mean = {.4914f, .4822f, .4465f};
inline constexpr std::array kCifar10Std = {.2023f, .1994f, .2010f};

/// Reads CIFAR-10's binary version: data_batch_1.bin .. data_batch_5.bin (training, in this order) or
/// test_batch.bin, in the folder or in its cifar-10-batches-bin/. Each is a sequence of records of 3073
/// bytes: the label, then 1024 bytes of red, of green and of blue, row by row.
///
/// limit    read only the first `limit` images; 0: all
/// returns  images_NCHW [N, 3, 32, 32], labels 0 .. 9
/// throws   IoError naming the file: missing, a partial record, fewer or more records than the first training
///          file, a label above 9
Images read_cifar10(const std::filesystem::path& folder, Part part, std::int64_t limit = 0);

/// What a table's last column may hold.
enum class Label { kNumber, kZeroOrOne };

/// Reads a table of numbers from a CSV file (RFC 4180): one example per line, the last value is the label.
///
/// A first line whose last value is not a number holds the columns' names. Lines end in LF or CRLF; a byte
/// order mark and empty lines are skipped; values may have spaces or quotes around them.
///
/// returns  input float [N, columns - 1], target float [N, 1]
/// throws   IoError naming the file, line and column: fewer than two columns, lines of different lengths, a
///          value that is not a finite float, a label other than 0 and 1 (Label::kZeroOrOne), no examples
TensorDataset read_table(const std::filesystem::path& path, Label label = Label::kNumber);

}  // namespace ddprun::data
