#include "worker/serialize/pt_file.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
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
#include "worker/serialize/in_quotes.h"
#include "worker/serialize/legacy_pt.h"
#include "worker/serialize/output_file.h"
#include "worker/serialize/portable_value.h"
#include "worker/serialize/rebuild_tensor.h"
#include "worker/serialize/unpickler.h"
#include "worker/serialize/zip_records.h"

namespace ddprun::serialize {
namespace {

constexpr std::uint64_t kMaxPickle = std::uint64_t{256} << 20;

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

enum class Format { kZip, kLegacy };

/// Refuses what is neither at once, and by its right name.
Format format_of(const std::filesystem::path& path) {
  const auto start = first_bytes(path, 64);
  if (start.starts_with("PK\x03\x04")) return Format::kZip;
  if (is_legacy_pt(start)) return Format::kLegacy;
  if (start.empty()) throw IoError(path, "is empty, expected a file written by torch.save");
  throw IoError(path, "is not a zip, expected a file written by torch.save");
}

/// The storages of one file, each read once.
class Storages {
 public:
  /// read  whether to read their data
  Storages(ZipRecords& records, bool read) : records_(records), read_(read) {}

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
      if (read_) records_.read(name, place->second.mutable_data_ptr());
    }
    if (read_ && wanted.dtype == at::kBool)
      if (const auto reason = bad_bools(place->second.const_data_ptr(), place->second.nbytes()))
        throw UnpickleError("record " + in_quotes(name) + " " + *reason);
    return place->second.storage();
  }

 private:
  ZipRecords& records_;
  bool read_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

ZipRecords open_zip(const std::filesystem::path& path) {
  ZipRecords records(path);
  if (!records.has("data.pkl")) throw IoError(path, "has no data.pkl, expected a file written by torch.save");
  if (records.has("constants.pkl"))
    throw IoError(path, "is a TorchScript program, expected a file of torch.save");
  if (records.has("byteorder") && records.read("byteorder") != "little")
    throw IoError(path, "has byte order " + in_quotes(records.read("byteorder")) + ", expected \"little\"");
  if (records.size("data.pkl") > kMaxPickle)
    throw IoError(path, "has a data.pkl of " + std::to_string(records.size("data.pkl")) +
                            " bytes, expected " + std::to_string(kMaxPickle) + " at most");
  return records;
}

c10::IValue read_zip(const std::filesystem::path& path, bool with_data) {
  auto records = open_zip(path);
  Storages storages(records, with_data);
  const auto open_storage = [&](const StorageReference& wanted) { return storages.open(wanted); };
  auto value = unpickle(records.read("data.pkl"), open_storage);
  if (with_data) records.verify_unread();
  return value;
}

/// What read() returns; an error in the pickle becomes the file's.
template <typename Read>
c10::IValue naming_file(const std::filesystem::path& path, Read read) {
  try {
    return read();
  } catch (const UnpickleError& error) {
    throw IoError(
        path, std::string("expected weights or a training state as torch.save writes them: ") + error.what());
  }
}

/// Reads the file again for its CRC-32, before it takes the place of an older one.
void verify(const std::filesystem::path& written, const std::filesystem::path& path) {
  try {
    open_zip(written).verify_unread();
  } catch (const IoError& error) {
    throw IoError(path, std::string("was not written as it should be, and is not replaced: ") + error.what());
  }
}

}  // namespace

void write_pt(const std::filesystem::path& path, const c10::IValue& root) {
  const auto value = portable_value(root);
  const auto pickle = make_pickle(value);
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    write_records(file, pickle);
    file.settle();
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
    verify(temporary, path);
  });
}

c10::IValue read_pt(const std::filesystem::path& path) {
  const auto format = format_of(path);
  return naming_file(path, [&] {
    return format == Format::kLegacy ? read_legacy_pt(path) : read_zip(path, /*with_data=*/true);
  });
}

c10::IValue peek_pt(const std::filesystem::path& path) {
  if (format_of(path) == Format::kLegacy) throw IoError(path, "is in torch's old format, expected a zip");
  return naming_file(path, [&] { return read_zip(path, /*with_data=*/false); });
}

}  // namespace ddprun::serialize
