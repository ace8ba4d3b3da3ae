#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

namespace ddprun::data {

/// The content of a plain or gzip file, whichever it is: bytes (uint8) of shape [size]. Refuses a gzip file
/// that is truncated, has a wrong checksum or is followed by anything but another gzip file.
///
/// throws  IoError naming the file, also for more than 8 GiB
at::Tensor read_plain_or_gzip(const std::filesystem::path& path);

}  // namespace ddprun::data
