#include "worker/serialize/pt_file.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "common/unique_fd.h"
#include "worker/serialize/in_quotes.h"
#include "worker/serialize/portable_value.h"
#include "worker/serialize/unpickler.h"
#include "worker/serialize/zip_records.h"

namespace ddprun::serialize {
namespace {

constexpr std::uint64_t kMaxPickle = std::uint64_t{256} << 20;

/// A file to append to whose first error is kept instead of thrown: PyTorchStreamWriter's destructor writes
/// on, and would end the program.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)),
        error_(fd_ ? 0 : errno) {}

  std::size_t append(const void* bytes, std::size_t count) {
    const char* at = static_cast<const char*>(bytes);
    for (std::size_t left = count; left > 0 && error_ == 0;) {
      const auto written = ::write(fd_.get(), at, left);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) error_ = errno;
      if (written < 0) break;
      at += written;
      left -= static_cast<std::size_t>(written);
    }
    return count;
  }
  int error() const { return error_; }

 private:
  UniqueFd fd_;
  int error_;
};

struct Pickle {
  std::string bytes;
  std::vector<at::Tensor> storages;  // one tensor for each, in the order of their keys
};

Pickle make_pickle(const c10::IValue& root) {
  Pickle pickle;
  const auto append = [&](const char* bytes, std::size_t count) { pickle.bytes.append(bytes, count); };
  const auto next_key = [&](const at::Tensor& tensor) {
    pickle.storages.push_back(tensor);
    return std::to_string(pickle.storages.size() - 1);
  };
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, next_key, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(root);
  pickler.stop();
  return pickle;
}

void write_records(OutputFile& file, const Pickle& pickle) {
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* bytes, std::size_t count) { return file.append(bytes, count); });
  writer.writeRecord("data.pkl", pickle.bytes.data(), pickle.bytes.size());
  constexpr std::string_view kOrder = "little";
  writer.writeRecord("byteorder", kOrder.data(), kOrder.size());
  for (std::size_t i = 0; i < pickle.storages.size() && file.error() == 0; ++i) {
    const auto& storage = pickle.storages[i].storage();
    const char nothing = 0;
    const void* data = storage.nbytes() > 0 ? storage.data() : &nothing;
    writer.writeRecord("data/" + std::to_string(i), data, storage.nbytes());
  }
  writer.writeEndOfFile();
}

std::string first_bytes(const std::filesystem::path& path, std::size_t count) {
  const auto fd = open_regular_file(path);
  std::string bytes(count, '\0');
  const auto got = ::read(fd.get(), bytes.data(), count);
  if (got < 0) throw IoError(path, "cannot read", errno);
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

/// Refuses what is not a zip at once, and by its right name.
void check_magic(const std::filesystem::path& path) {
  const auto start = first_bytes(path, 4);
  if (start.starts_with("PK\x03\x04")) return;
  if (start.starts_with("\x80\x02\x8a\x0a"))
    throw IoError(path,
                  "is in torch's old non-zip format, expected a zip: save it again with a newer PyTorch");
  throw IoError(path, "is not a zip, expected a file written by torch.save");
}

/// The storages of one file, each read once.
class Storages {
 public:
  explicit Storages(ZipRecords& records) : records_(records) {}

  c10::Storage open(const StorageReference& wanted) {
    const auto name = "data/" + wanted.key;
    std::int64_t bytes = 0;
    if (!records_.has(name)) throw UnpickleError("no record " + in_quotes(name));
    const auto found = records_.size(name);
    if (__builtin_mul_overflow(wanted.numel, static_cast<std::int64_t>(c10::elementSize(wanted.dtype)),
                               &bytes) ||
        static_cast<std::uint64_t>(bytes) != found)
      throw UnpickleError("record " + in_quotes(name) + " has " + std::to_string(found) +
                          " bytes, expected " + std::to_string(wanted.numel) + " elements of " +
                          std::to_string(c10::elementSize(wanted.dtype)));
    auto [place, is_new] = storages_.try_emplace(wanted.key);
    if (is_new) {
      place->second = at::empty({bytes}, at::kByte);
      records_.read(name, place->second.mutable_data_ptr());
    }
    if (wanted.dtype == at::kBool) check_bools(name, place->second);
    return place->second.storage();
  }

 private:
  static void check_bools(const std::string& name, const at::Tensor& bytes) {
    const auto* data = bytes.const_data_ptr<std::uint8_t>();
    if (std::any_of(data, data + bytes.numel(), [](std::uint8_t byte) { return byte > 1; }))
      throw UnpickleError("record " + in_quotes(name) + " holds bools that are neither 0 nor 1");
  }

  ZipRecords& records_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

}  // namespace

void write_pt(const std::filesystem::path& path, const c10::IValue& root) {
  const auto value = portable_value(root);
  const auto pickle = make_pickle(value);
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    write_records(file, pickle);
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
  });
}

c10::IValue read_pt(const std::filesystem::path& path) {
  check_magic(path);
  ZipRecords records(path);
  if (!records.has("data.pkl")) throw IoError(path, "has no data.pkl, expected a file written by torch.save");
  if (records.has("constants.pkl"))
    throw IoError(path, "is a TorchScript program, expected a file of torch.save");
  if (records.has("byteorder") && records.read("byteorder") != "little")
    throw IoError(path, "has byte order " + in_quotes(records.read("byteorder")) + ", expected \"little\"");
  if (records.size("data.pkl") > kMaxPickle)
    throw IoError(path, "has a data.pkl of " + std::to_string(records.size("data.pkl")) +
                            " bytes, expected " + std::to_string(kMaxPickle) + " at most");
  Storages storages(records);
  const auto open_storage = [&](const StorageReference& wanted) { return storages.open(wanted); };
  try {
    auto value = unpickle(records.read("data.pkl"), open_storage);
    records.verify_unread();
    return value;
  } catch (const UnpickleError& error) {
    throw IoError(
        path, std::string("expected weights or a training state as torch.save writes them: ") + error.what());
  }
}

}  // namespace ddprun::serialize
