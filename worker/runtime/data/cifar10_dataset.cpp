#include <ddprun/data/cifar10_dataset.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kImageBytes = 3 * kSide * kSide;
constexpr std::int64_t kRecordBytes = 1 + kImageBytes;
constexpr const char* kSubfolder = "cifar-10-batches-bin";

struct RecordFile {
  fs::path path;
  UniqueFd fd;
  std::int64_t records;
};

/// The folder, or the subfolder that the archive unpacks to.
fs::path folder_with(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const auto& candidate : {folder, folder / kSubfolder})
    if (fs::exists(candidate / name, error)) return candidate;
  if (!fs::is_directory(folder, error))
    throw IoError(folder, "no such folder; expected one with CIFAR-10's " + name);
  for (const auto& candidate : {folder, folder / "cifar-10-batches-py"})
    if (fs::exists(candidate / "batches.meta", error))
      throw IoError(candidate, "holds CIFAR-10's Python version, expected the binary version (" + name + ")");
  throw IoError(folder / name, std::string("no such file, nor in ") + kSubfolder + "/ there");
}

RecordFile open_records(const fs::path& path) {
  auto fd = open_regular_file(path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw IoError(path, "cannot be looked up", errno);
  const std::int64_t size = status.st_size;
  if (size == 0 || size % kRecordBytes != 0)
    throw IoError(path, "expected records of " + std::to_string(kRecordBytes) + " bytes, got " +
                            std::to_string(size / kRecordBytes) + " and " +
                            std::to_string(size % kRecordBytes) + " bytes more");
  return {path, std::move(fd), size / kRecordBytes};
}

std::vector<RecordFile> open_part(const fs::path& folder, Part part) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (part == Part::kTrain) {
    names.clear();
    for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  }
  const auto found = folder_with(folder, names.front());
  std::vector<RecordFile> files;
  for (const auto& name : names) {
    files.push_back(open_records(found / name));
    if (files.back().records != files.front().records)
      throw IoError(files.back().path, "expected " + std::to_string(files.front().records) +
                                           " records, as many as " + names.front() + " has, got " +
                                           std::to_string(files.back().records));
  }
  return files;
}

/// Reads the file's first records, and their labels: the first byte of each.
void read_records(const RecordFile& file, std::int64_t count, std::uint8_t* records, std::int64_t* labels) {
  const auto size = static_cast<std::size_t>(count * kRecordBytes);
  const auto done = read_at(file.fd, 0, records, size, file.path);
  if (done != size)
    throw IoError(file.path,
                  "is cut: expected " + std::to_string(size) + " bytes, got " + std::to_string(done));
  for (std::int64_t i = 0; i < count; ++i) {
    labels[i] = records[i * kRecordBytes];
    if (labels[i] > 9)
      throw IoError(file.path, "record " + std::to_string(i) + ": expected a label from 0 to 9, got " +
                                   std::to_string(labels[i]));
  }
}

}  // namespace

Images read_cifar10(const fs::path& folder, Part part, std::int64_t limit) {
  const auto files = open_part(folder, part);
  auto size = static_cast<std::int64_t>(files.size()) * files.front().records;
  if (limit > 0) size = std::min(size, limit);
  // Records stay as in the file, so nothing is copied: an image is a record without its first byte.
  const auto records = torch::empty({size, kRecordBytes}, torch::kUInt8);
  const auto labels = torch::empty({size}, torch::kInt64);
  std::int64_t done = 0;
  for (const auto& file : files) {
    const auto count = std::min(file.records, size - done);
    read_records(file, count, records.mutable_data_ptr<std::uint8_t>() + done * kRecordBytes,
                 labels.mutable_data_ptr<std::int64_t>() + done);
    done += count;
  }
  return {records.slice(1, 1).unflatten(1, {3, kSide, kSide}), labels};
}

}  // namespace ddprun::data
