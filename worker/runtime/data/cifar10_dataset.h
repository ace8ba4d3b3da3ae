#pragma once

#include <array>
#include <filesystem>

#include <ddprun/data/image_dataset.h>

namespace ddprun::data {

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

}  // namespace ddprun::data
