#include <ddprun/data/idx_dataset.h>

#include <libdeflate.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxBytes = std::int64_t{8} << 30;  // far above any real file
constexpr std::int64_t kLikelyRatio = 64;                  // a damaged file may claim more

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
  return std::clamp<std::int64_t>(said, 1, std::min(size * kLikelyRatio, kMaxBytes));
}

/// The next bytes of a file's content; throws if it ends too early.
torch::Tensor take(torch::Tensor& content, const fs::path& path, std::int64_t size, const std::string& what) {
  const auto left = content.numel();
  if (left < size)
    throw IoError(path, "is cut: expected " + std::to_string(size) + " bytes of " + what + ", got " +
                            std::to_string(left));
  const auto taken = content.narrow(0, 0, size);
  content = content.narrow(0, size, left - size);
  return taken;
}

std::uint32_t big_endian(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

/// NAME or NAME.gz in the folder.
fs::path find_idx(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const auto& path : {folder / name, folder / (name + ".gz")}) {
    if (fs::exists(path, error)) return path;
    if (error) throw IoError(path, "cannot be looked up", error.value());
  }
  if (!fs::is_directory(folder, error))
    throw IoError(folder, "no such folder; expected one with " + name + "[.gz]");
  throw IoError(folder / name, "no such file, nor with .gz");
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
      content.resize_({std::min(2 * content.numel(), kMaxBytes)});
    } else if (result == LIBDEFLATE_SUCCESS) {
      read += static_cast<std::int64_t>(taken);
      written += static_cast<std::int64_t>(got);
    } else {
      throw IoError(path, "is not a whole gzip file: cut or damaged");
    }
  }
  return content.narrow(0, 0, written);
}

torch::Tensor read_idx(const fs::path& path, int dimensions) {
  auto content = read_plain_or_gzip(path);
  const auto next_number = [&] {
    return big_endian(take(content, path, 4, "header").const_data_ptr<std::uint8_t>());
  };
  const auto magic = next_number();
  const std::uint32_t expected = 0x800u + static_cast<std::uint32_t>(dimensions);
  if (magic != expected)
    throw IoError(path, "expected magic number " + std::to_string(expected) + " (IDX of unsigned bytes, " +
                            std::to_string(dimensions) + "-dimensional), got " + std::to_string(magic));
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 1;  // a size of 0 counts as 1, so the other sizes are still checked
  for (int i = 0; i < dimensions; ++i) {
    shape.push_back(next_number());
    const auto factor = std::max<std::int64_t>(1, shape.back());
    if (bytes > kMaxBytes / factor) throw IoError(path, "has a header that asks for more than 8 GiB");
    bytes *= factor;
  }
  const auto values = take(content, path, c10::multiply_integers(shape), "values").view(shape);
  if (content.numel() > 0) throw IoError(path, "has more bytes than its header announces");
  return values;
}

Images read_mnist(const fs::path& folder, Part part, std::int64_t limit) {
  const std::string stem = part == Part::kTrain ? "train" : "t10k";
  const auto image_path = find_idx(folder, stem + "-images-idx3-ubyte");
  const auto label_path = find_idx(folder, stem + "-labels-idx1-ubyte");
  auto images_NHW = read_idx(image_path, 3);
  if (images_NHW.size(1) != 28 || images_NHW.size(2) != 28)
    throw IoError(image_path, "expected images of 28 x 28, got " + std::to_string(images_NHW.size(1)) +
                                  " x " + std::to_string(images_NHW.size(2)));
  if (images_NHW.size(0) == 0) throw IoError(image_path, "holds no images");
  auto labels = read_idx(label_path, 1);
  if (labels.size(0) != images_NHW.size(0))
    throw IoError(label_path, "expected " + std::to_string(images_NHW.size(0)) +
                                  " labels, one an image, got " + std::to_string(labels.size(0)));
  if (const int largest = labels.max().item<int>(); largest > 9)
    throw IoError(label_path, "expected labels from 0 to 9, got " + std::to_string(largest));
  if (limit > 0 && limit < images_NHW.size(0)) {
    images_NHW = images_NHW.slice(0, 0, limit).clone();
    labels = labels.slice(0, 0, limit);
  }
  return {images_NHW.unsqueeze(1), labels.to(torch::kInt64)};
}

}  // namespace ddprun::data
