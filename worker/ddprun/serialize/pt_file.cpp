#include <ddprun/serialize/pt_file.h>

#include <zip.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/portable_value.h>
#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {
namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kMaxPickle = std::uint64_t{256} << 20;
constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

// The start of a file that torch.save wrote before 1.6, or with _use_new_zipfile_serialization=False.
constexpr auto kLegacyMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr auto kLegacyVersion = "\x80\x02M\xe9\x03."sv;  // 1001

std::string zip_problem(int code) {
  zip_error error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

/// The records of a zip archive as written by torch.save: uncompressed, in a single folder, each verified by
/// CRC-32 when read. All functions throw IoError naming the archive.
class ZipRecords {
 public:
  explicit ZipRecords(const std::filesystem::path& path) : path_(path) {
    int code = 0;
    errno = 0;
    archive_.reset(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
    if (archive_ == nullptr && (code == ZIP_ER_OPEN || code == ZIP_ER_READ || code == ZIP_ER_NOENT))
      throw IoError(path, "cannot read", errno);
    if (archive_ == nullptr) fail(zip_problem(code));
    list_records();
  }

  /// name  without the folder: "data.pkl"
  bool has(const std::string& name) const { return records_.contains(name); }
  std::uint64_t size(const std::string& name) { return record(name).size; }

  /// size(name) bytes
  void read(const std::string& name, void* bytes) {
    read_record(name, record(name), [&](std::uint64_t at) { return static_cast<char*>(bytes) + at; });
  }

  std::string read(const std::string& name) {
    std::string bytes(size(name), '\0');
    read(name, bytes.data());
    return bytes;
  }

  /// Reads the remaining records to verify their CRC-32.
  void verify_unread() {
    std::vector<char> scratch(kChunk);
    for (auto& [name, record] : records_)
      if (!record.verified) read_record(name, record, [&](std::uint64_t) { return scratch.data(); });
  }

 private:
  struct Close {
    void operator()(zip* archive) const { zip_discard(archive); }
    void operator()(zip_file* file) const { zip_fclose(file); }
  };
  struct Record {
    std::uint64_t index;
    std::uint64_t size;
    bool verified = false;
  };

  [[noreturn]] void fail(const std::string& message) const {
    throw IoError(path_, "damaged, expected the intact zip archive that torch.save writes: " + message);
  }

  void list_records() {
    std::error_code error;
    // Records are uncompressed and do not overlap, so memory for them stays within the file's size.
    auto left = static_cast<std::uint64_t>(std::filesystem::file_size(path_, error));
    if (error) throw IoError(path_, "cannot stat", error.value());
    std::string folder;
    const auto count = static_cast<std::uint64_t>(zip_get_num_entries(archive_.get(), 0));
    for (std::uint64_t index = 0; index < count; ++index) {
      zip_stat_t info;
      zip_stat_init(&info);
      constexpr auto kNeeded =
          ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_CRC | ZIP_STAT_COMP_METHOD;
      if (zip_stat_index(archive_.get(), index, ZIP_FL_ENC_RAW, &info) != 0 ||
          (info.valid & kNeeded) != kNeeded)
        fail("no description of record " + std::to_string(index));
      const std::string path = info.name;
      if (info.comp_method != ZIP_CM_STORE || info.comp_size != info.size)
        fail("record " + in_quotes(path) + " is compressed, expected a stored one");
      if (info.size > left) fail("record " + in_quotes(path) + " reaches beyond the file");
      left -= info.size;
      const auto slash = path.find('/');
      if (index == 0 && slash != std::string::npos) folder = path.substr(0, slash + 1);
      if (folder.empty() || !path.starts_with(folder))
        fail("record " + in_quotes(path) + " is not in the one folder");
      if (!records_.emplace(path.substr(folder.size()), Record{index, info.size}).second)
        fail("two records " + in_quotes(path));
    }
  }

  Record& record(const std::string& name) {
    const auto found = records_.find(name);
    if (found == records_.end()) fail("no record " + in_quotes(name));
    return found->second;
  }

  /// Calls sink(offset) to learn where to put the next bytes, until the record's end. libzip checks the
  /// CRC-32 when asked for more after the last byte.
  template <typename Sink>
  void read_record(const std::string& name, Record& record, Sink sink) {
    const std::unique_ptr<zip_file, Close> file(zip_fopen_index(archive_.get(), record.index, 0));
    if (file == nullptr) fail("record " + in_quotes(name) + ": " + zip_strerror(archive_.get()));
    std::uint64_t at = 0;
    char beyond = 0;
    for (;;) {
      const auto wanted = std::min(kChunk, record.size - at);
      const auto count = zip_fread(file.get(), wanted > 0 ? sink(at) : &beyond, wanted > 0 ? wanted : 1);
      if (count < 0) fail("record " + in_quotes(name) + ": " + zip_file_strerror(file.get()));
      if (count == 0 && wanted == 0) break;
      if (count == 0 || wanted == 0)
        fail("record " + in_quotes(name) + " has a different size than its header says");
      at += static_cast<std::uint64_t>(count);
    }
    record.verified = true;
  }

  std::filesystem::path path_;
  std::unique_ptr<zip, Close> archive_;
  std::map<std::string, Record> records_;
};

struct Pickle {
  std::string bytes;
  std::vector<at::Tensor> storages;  // one tensor per storage, in the order of their keys
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

void write_records(OutputFile& file, const Pickle& pickle, const ValueOf& value_of) {
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* bytes, std::size_t count) { return file.append(bytes, count); });
  writer.writeRecord("data.pkl", pickle.bytes.data(), pickle.bytes.size());
  constexpr std::string_view kOrder = "little";
  writer.writeRecord("byteorder", kOrder.data(), kOrder.size());
  for (std::size_t i = 0; i < pickle.storages.size() && file.error() == 0; ++i) {
    const auto& storage = pickle.storages[i].storage();
    const auto value = value_of ? value_of(pickle.storages[i]) : at::Tensor();
    const bool is_read = value.defined() && !value.is_alias_of(pickle.storages[i]);
    const char nothing = 0;
    const void* data = is_read ? value.const_data_ptr() : storage.data();
    writer.writeRecord("data/" + std::to_string(i), storage.nbytes() > 0 ? data : &nothing, storage.nbytes());
  }
  writer.writeEndOfFile();
}

/// False for a zip. throws IoError for any other file
bool is_legacy(const std::filesystem::path& path) {
  std::string start(64, '\0');
  start.resize(read_at(open_regular_file(path), 0, start.data(), start.size(), path));
  if (start.starts_with("PK\x03\x04")) return false;
  if (start.starts_with(kLegacyMagic)) return true;
  if (start.empty()) throw IoError(path, "is empty, expected a file written by torch.save");
  throw IoError(path, "is not a zip, expected a file written by torch.save");
}

/// The storage's size in bytes; nullopt if no memory is that large.
std::optional<std::int64_t> byte_size(const StorageReference& storage) {
  std::int64_t bytes = 0;
  const auto element = static_cast<std::int64_t>(c10::elementSize(storage.dtype));
  return __builtin_mul_overflow(storage.numel, element, &bytes) ? std::nullopt : std::optional(bytes);
}

/// The storages of one file: handed out empty, and read once it is known which ones are needed.
class Storages {
 public:
  explicit Storages(ZipRecords& records) : records_(records) {}

  c10::Storage open(const StorageReference& wanted) {
    const auto name = "data/" + wanted.key;
    if (!records_.has(name)) throw UnpickleError("no record " + in_quotes(name));
    const auto found = records_.size(name);
    const auto bytes = byte_size(wanted);
    if (!bytes || static_cast<std::uint64_t>(*bytes) != found)
      throw UnpickleError(c10::str("record ", in_quotes(name), " has ", found, " bytes, expected ",
                                   wanted.numel, " elements of ", c10::elementSize(wanted.dtype)));
    auto& opened = opened_[name];
    if (!opened.bytes.defined()) opened.bytes = at::empty({*bytes}, at::kByte);
    opened.is_bool = opened.is_bool || wanted.dtype == at::kBool;
    return opened.bytes.storage();
  }

  /// Reads the storages of a value's tensors.
  void read(const c10::IValue& value) {
    std::unordered_set<const c10::StorageImpl*> wanted;
    value.visit([&](const c10::IValue& part) {
      if (part.isTensor() && part.toTensor().defined())
        wanted.insert(part.toTensor().storage().unsafeGetStorageImpl());
      return false;
    });
    for (const auto& [name, opened] : opened_) {
      if (!wanted.contains(opened.bytes.storage().unsafeGetStorageImpl())) continue;
      records_.read(name, opened.bytes.mutable_data_ptr());
      if (!opened.is_bool) continue;
      if (const auto reason = bad_bools(opened.bytes.const_data_ptr(), opened.bytes.nbytes()))
        throw UnpickleError("record " + in_quotes(name) + " " + *reason);
    }
  }

 private:
  struct Opened {
    at::Tensor bytes;
    bool is_bool = false;
  };
  ZipRecords& records_;
  std::map<std::string, Opened> opened_;  // by the record's name
};

ZipRecords open_zip(const std::filesystem::path& path) {
  ZipRecords records(path);
  if (!records.has("data.pkl")) throw IoError(path, "has no data.pkl, expected a file written by torch.save");
  if (records.has("constants.pkl"))
    throw IoError(path, "is a TorchScript program, expected a file written by torch.save");
  if (records.has("byteorder") && records.read("byteorder") != "little")
    throw IoError(path, "has byte order " + in_quotes(records.read("byteorder")) + ", expected \"little\"");
  if (records.size("data.pkl") > kMaxPickle)
    throw IoError(path, "has a data.pkl of " + std::to_string(records.size("data.pkl")) +
                            " bytes, expected at most " + std::to_string(kMaxPickle));
  return records;
}

/// The part of the value whose tensors the caller wants; null: read and verify only the structure.
using PartOf = std::function<c10::IValue(const c10::IValue& value)>;

c10::IValue read_zip(const std::filesystem::path& path, const PartOf& part_of) {
  auto records = open_zip(path);
  Storages storages(records);
  const auto open_storage = [&](const StorageReference& wanted) { return storages.open(wanted); };
  auto value = unpickle(records.read("data.pkl"), open_storage);
  if (!part_of) return value;
  storages.read(part_of(value));
  records.verify_unread();
  return value;
}

std::int64_t take_int64(std::string_view& bytes) {
  std::int64_t number = 0;
  if (bytes.size() < sizeof number) throw UnpickleError("the file ends in the middle of a storage's size");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

/// The storages that a legacy file's value refers to; their data follow the value.
class LegacyStorages {
 public:
  /// most_bytes  of all storages together
  explicit LegacyStorages(std::size_t most_bytes) : bytes_left_(static_cast<std::int64_t>(most_bytes)) {}

  c10::Storage open(const StorageReference& wanted) {
    const auto [place, is_new] = storages_.try_emplace(wanted.key, LegacyStorage{wanted});
    auto& [first, bytes, filled] = place->second;
    if (is_new) {
      const auto count = byte_size(wanted);
      if (!count || *count > bytes_left_)
        throw UnpickleError("storage " + in_quotes(wanted.key) + " of " + std::to_string(wanted.numel) +
                            " elements reaches beyond the file");
      bytes_left_ -= *count;
      bytes = at::empty({*count}, at::kByte);
    }
    if (first.dtype != wanted.dtype || first.numel != wanted.numel)
      throw UnpickleError("storage " + in_quotes(wanted.key) + " is referred to with two types or sizes");
    return bytes.storage();
  }

  void fill(const std::string& key, std::string_view& bytes) {
    const auto found = storages_.find(key);
    if (found == storages_.end() || found->second.filled)
      throw UnpickleError("data of a storage " + in_quotes(key) + " that no tensor refers to");
    auto& storage = found->second;
    if (const auto count = take_int64(bytes); count != storage.first.numel)
      throw UnpickleError("storage " + in_quotes(key) + " has " + std::to_string(count) +
                          " elements, expected " + std::to_string(storage.first.numel));
    if (bytes.size() < storage.bytes.nbytes())
      throw UnpickleError("the file ends in the middle of storage " + in_quotes(key));
    if (storage.bytes.nbytes() > 0)
      std::memcpy(storage.bytes.mutable_data_ptr(), bytes.data(), storage.bytes.nbytes());
    if (storage.first.dtype == at::kBool)
      if (const auto reason = bad_bools(bytes.data(), storage.bytes.nbytes()))
        throw UnpickleError("storage " + in_quotes(key) + " " + *reason);
    bytes.remove_prefix(storage.bytes.nbytes());
    storage.filled = true;
  }

  void check_all_filled() const {
    for (const auto& [key, storage] : storages_)
      if (!storage.filled) throw UnpickleError("the file lacks the data of storage " + in_quotes(key));
  }

 private:
  struct LegacyStorage {
    StorageReference first;  // all others have the same type and size
    at::Tensor bytes = {};
    bool filled = false;
  };

  std::int64_t bytes_left_;
  std::unordered_map<std::string, LegacyStorage> storages_;
};

c10::Storage no_storage(const StorageReference&) { throw UnpickleError("a tensor where none is allowed"); }

void check_little_endian(const c10::IValue& system) {
  if (system.isGenericDict())
    for (const auto& item : system.toGenericDict())
      if (item.key().isString() && item.key().toStringRef() == "little_endian" && item.value().isBool() &&
          item.value().toBool())
        return;
  throw UnpickleError("not written by a little-endian machine");
}

/// The value in a legacy file. It has no checksums, so only truncation and inconsistencies are
/// detected.
///
///   pickles: magic number | 1001 | system | value | storage keys, then for each key int64 numel | data
c10::IValue read_legacy_pt(const std::filesystem::path& path) {
  const auto content = read_file(open_regular_file(path), path, std::size_t{1} << 40);
  auto bytes = std::string_view(content).substr(kLegacyMagic.size());
  if (!bytes.starts_with(kLegacyVersion)) throw UnpickleError("not version 1001 of the format");
  bytes.remove_prefix(kLegacyVersion.size());
  check_little_endian(unpickle_first(bytes, no_storage));

  LegacyStorages storages(bytes.size());
  const auto value =
      unpickle_first(bytes, [&](const StorageReference& wanted) { return storages.open(wanted); });
  const auto keys = unpickle_first(bytes, no_storage);
  if (!keys.isList()) throw UnpickleError("expected a list of storages after the value");
  for (const c10::IValue& key : keys.toListRef()) {
    if (!key.isString()) throw UnpickleError("a storage's key is a " + key.tagKind() + ", expected a string");
    storages.fill(key.toStringRef(), bytes);
  }
  storages.check_all_filled();
  if (!bytes.empty()) throw UnpickleError(c10::str(bytes.size(), " bytes too many at the end of the file"));
  return value;
}

/// A list of the dict's values under these keys.
c10::IValue under(const c10::IValue& value, const std::vector<std::string>& keys) {
  c10::impl::GenericList parts(c10::AnyType::get());
  if (!value.isGenericDict()) return parts;
  const auto dict = value.toGenericDict();
  for (const auto& key : keys)
    if (const auto found = dict.find(key); found != dict.end()) parts.push_back(found->value());
  return parts;
}

/// An error in the pickle becomes an IoError naming the file.
///
/// part_of  for a zip
c10::IValue read_either(const std::filesystem::path& path, const PartOf& part_of) {
  try {
    return is_legacy(path) ? read_legacy_pt(path) : read_zip(path, part_of);
  } catch (const UnpickleError& error) {
    throw IoError(
        path, std::string("expected weights or a training state as torch.save writes them: ") + error.what());
  }
}

/// Reads the file back for its CRC-32 before it replaces an older one.
void verify(const std::filesystem::path& written, const std::filesystem::path& path) {
  try {
    open_zip(written).verify_unread();
  } catch (const IoError& error) {
    throw IoError(path, std::string("was not written as it should be, and is not replaced: ") + error.what());
  }
}

}  // namespace

void write_pt(const std::filesystem::path& path, const c10::IValue& root, const ValueOf& value_of) {
  const auto value = portable_value(root);
  const auto pickle = make_pickle(value);
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    write_records(file, pickle, value_of);
    file.settle();
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
    verify(temporary, path);
  });
}

c10::IValue read_pt(const std::filesystem::path& path) {
  return read_either(path, [](const c10::IValue& value) { return value; });
}

c10::IValue read_pt(const std::filesystem::path& path, const std::vector<std::string>& keys) {
  return read_either(path, [&](const c10::IValue& value) { return under(value, keys); });
}

c10::IValue peek_pt(const std::filesystem::path& path) {
  if (is_legacy(path)) throw IoError(path, "is in torch's old format, expected a zip");
  return read_either(path, nullptr);
}

}  // namespace ddprun::serialize
