#include <ddprun/data/gz_file.h>

#include <libdeflate.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <string>

#include <ATen/ops/empty.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxBytes = std::int64_t{8} << 30;  // far above any real file
constexpr std::int64_t kMaxRatio = 1032;                   // of what is compressed by DEFLATE

at::Tensor read_bytes(const fs::path& path) {
  const UniqueFd fd = open_regular_file(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot read", errno);
  if (info.st_size > kMaxBytes) throw IoError(path, "is larger than 8 GiB");
  auto bytes = at::empty({info.st_size}, at::kByte);
  const auto done = read_at(fd, 0, bytes.mutable_data_ptr(), bytes.nbytes(), path);
  return bytes.narrow(0, 0, static_cast<std::int64_t>(done));  // fewer: it has just become shorter
}

/// What the end of a gzip file says of its last member's size, unless that cannot be.
std::int64_t likely_size(const std::uint8_t* file, std::int64_t size) {
  std::int64_t said = 0;
  for (int i = 1; i <= 4 && i <= size; ++i) said = said << 8 | file[size - i];
  return std::clamp<std::int64_t>(said, 1, size * kMaxRatio);
}

}  // namespace

at::Tensor read_plain_or_gzip(const fs::path& path) {
  const auto file = read_bytes(path);
  const auto* from = file.const_data_ptr<std::uint8_t>();
  if (file.numel() < 2 || from[0] != 0x1f || from[1] != 0x8b) return file;
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      ::libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (!decompressor) throw std::bad_alloc();
  auto content = at::empty({likely_size(from, file.numel())}, at::kByte);
  std::int64_t read = 0, written = 0;
  while (read < file.numel()) {
    std::size_t taken = 0, got = 0;
    const auto result = ::libdeflate_gzip_decompress_ex(
        decompressor.get(), from + read, static_cast<std::size_t>(file.numel() - read),
        content.data_ptr<std::uint8_t>() + written, static_cast<std::size_t>(content.numel() - written),
        &taken, &got);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {  // several gzip files, one after the other
      if (content.numel() >= kMaxBytes) throw IoError(path, "decompresses to more than 8 GiB");
      content.resize_({2 * content.numel()});
    } else if (result == LIBDEFLATE_SUCCESS) {
      read += static_cast<std::int64_t>(taken);
      written += static_cast<std::int64_t>(got);
    } else {
      throw IoError(path, "is not a whole gzip file: cut or damaged");
    }
  }
  return content.narrow(0, 0, written);
}

}  // namespace ddprun::data
