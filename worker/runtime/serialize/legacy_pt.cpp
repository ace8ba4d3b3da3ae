#include <ddprun/serialize/legacy_pt.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/rebuild_tensor.h>
#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {
namespace {

using namespace std::string_view_literals;

constexpr auto kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr auto kVersion = "\x80\x02M\xe9\x03."sv;  // 1001

std::int64_t take_int64(std::string_view& bytes) {
  std::int64_t number = 0;
  if (bytes.size() < sizeof number) throw UnpickleError("the file ends in the middle of a storage's size");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

/// The storages that the value refers to; their data follow the value in the file.
class LegacyStorages {
 public:
  /// most_bytes  of all of them together
  explicit LegacyStorages(std::size_t most_bytes) : bytes_left_(static_cast<std::int64_t>(most_bytes)) {}

  c10::Storage open(const StorageReference& wanted) {
    auto [place, is_new] = storages_.try_emplace(wanted.key);
    auto& [bytes, dtype, filled] = place->second;
    if (is_new) {
      std::int64_t count = 0;
      if (__builtin_mul_overflow(wanted.numel, static_cast<std::int64_t>(c10::elementSize(wanted.dtype)),
                                 &count) ||
          count > bytes_left_)
        throw UnpickleError("storage " + in_quotes(wanted.key) + " of " + std::to_string(wanted.numel) +
                            " elements reaches beyond the file");
      bytes_left_ -= count;
      bytes = at::empty({count}, at::kByte);
      dtype = wanted.dtype;
    }
    if (dtype != wanted.dtype || numel(place->second) != wanted.numel)
      throw UnpickleError("storage " + in_quotes(wanted.key) + " is referred to with two types or sizes");
    return bytes.storage();
  }

  void fill(const std::string& key, std::string_view& bytes) {
    const auto found = storages_.find(key);
    if (found == storages_.end() || found->second.filled)
      throw UnpickleError("data of a storage " + in_quotes(key) + " that no tensor refers to");
    auto& storage = found->second;
    if (const auto count = take_int64(bytes); count != numel(storage))
      throw UnpickleError("storage " + in_quotes(key) + " has " + std::to_string(count) +
                          " elements, expected " + std::to_string(numel(storage)));
    if (bytes.size() < storage.bytes.nbytes())
      throw UnpickleError("the file ends in the middle of storage " + in_quotes(key));
    if (storage.bytes.nbytes() > 0)
      std::memcpy(storage.bytes.mutable_data_ptr(), bytes.data(), storage.bytes.nbytes());
    if (storage.dtype == at::kBool)
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
    at::Tensor bytes;
    at::ScalarType dtype = at::kByte;
    bool filled = false;
  };
  static std::int64_t numel(const LegacyStorage& storage) {
    return static_cast<std::int64_t>(storage.bytes.nbytes() / c10::elementSize(storage.dtype));
  }

  std::int64_t bytes_left_;
  std::unordered_map<std::string, LegacyStorage> storages_;
};

c10::Storage no_storage(const StorageReference&) { throw UnpickleError("a tensor where none can be"); }

void check_little_endian(const c10::IValue& system) {
  if (system.isGenericDict())
    for (const auto& item : system.toGenericDict())
      if (item.key().isString() && item.key().toStringRef() == "little_endian" && item.value().isBool() &&
          item.value().toBool())
        return;
  throw UnpickleError("not written by a little-endian machine");
}

}  // namespace

bool is_legacy_pt(std::string_view start) { return start.starts_with(kMagic); }

c10::IValue read_legacy_pt(const std::filesystem::path& path) {
  const auto content = read_file(open_regular_file(path), path, std::size_t{1} << 40);
  std::string_view bytes = content;
  if (!is_legacy_pt(bytes)) throw UnpickleError("the file does not begin with torch's magic number");
  bytes.remove_prefix(kMagic.size());
  if (!bytes.starts_with(kVersion)) throw UnpickleError("not version 1001 of the format");
  bytes.remove_prefix(kVersion.size());
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
  if (!bytes.empty())
    throw UnpickleError(std::to_string(bytes.size()) + " bytes follow what the file should hold");
  return value;
}

}  // namespace ddprun::serialize
