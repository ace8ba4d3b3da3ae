#include <ddprun/serialize/safetensors.h>

#include <unistd.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::serialize {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kMaxShapeDimensions = 64;
constexpr int kMostJsonLevels = 4;  // header, tensor, shape, number

struct Entry {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;
  std::uint64_t end;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path) : path_(path), fd_(open_regular_file(path)) {
    const auto end = ::lseek(fd_.get(), 0, SEEK_END);
    if (end < 0) throw IoError(path, "cannot read", errno);
    size_ = static_cast<std::uint64_t>(end);
  }

  std::uint64_t size() const { return size_; }
  [[noreturn]] void fail(const std::string& message) const {
    throw IoError(path_, "damaged, expected a .safetensors file: " + message);
  }
  void read(std::uint64_t offset, void* bytes, std::uint64_t count) const {
    if (read_at(fd_, offset, bytes, count, path_) != count) fail("ends too early");
  }
  std::uint64_t header_size() const {
    std::uint64_t length = 0;  // little endian, like this host
    read(0, &length, sizeof length);
    return length;
  }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_;
};

nlohmann::json read_header(const SafetensorsFile& file, std::uint64_t length) {
  if (length > kMaxHeader || length > file.size() - 8)
    file.fail("a header of " + std::to_string(length) + " bytes in a file of " + std::to_string(file.size()));
  std::string text(length, '\0');
  file.read(8, text.data(), length);
  nlohmann::json header;
  try {
    header = parse_shallow_json(text, kMostJsonLevels);
  } catch (const std::invalid_argument& error) {
    file.fail(std::string("its header ") + error.what());
  }
  if (!header.is_object()) file.fail("its header is not a JSON object");
  return header;
}

/// The numbers of a JSON array; nullopt unless it is an array of int64 >= 0.
std::optional<std::vector<std::int64_t>> numbers(const nlohmann::json& array) {
  if (!array.is_array()) return std::nullopt;
  std::vector<std::int64_t> result;
  for (const auto& element : array) {
    if (!element.is_number_unsigned() || element.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    result.push_back(element.get<std::int64_t>());
  }
  return result;
}

Entry make_entry(const SafetensorsFile& file, const std::string& name, const nlohmann::json& json) {
  const auto field = [&](const char* key) {
    return json.is_object() && json.contains(key) ? json[key] : nlohmann::json();
  };
  const auto dtype_name = field("dtype").is_string() ? field("dtype").get<std::string>() : std::string();
  const auto shape = numbers(field("shape"));
  const auto offsets = numbers(field("data_offsets"));
  if (!shape || shape->size() > kMaxShapeDimensions || !offsets || offsets->size() != 2 ||
      (*offsets)[0] > (*offsets)[1])
    file.fail("tensor " + in_quotes(name) + " lacks a proper shape or data_offsets");
  const auto dtype = dtype_named(dtype_name, &DtypeNames::safetensors);
  if (!dtype)
    file.fail("tensor " + in_quotes(name) + " has dtype " + in_quotes(dtype_name) +
              ", expected one that PyTorch has (F32, BF16, I64, BOOL, ...)");
  auto bytes = static_cast<std::int64_t>(c10::elementSize(*dtype));
  bool overflow = false;
  bool empty = false;
  for (const auto size : *shape) {
    if (size == 0) empty = true;
    if (size > 0) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  const auto given = (*offsets)[1] - (*offsets)[0];
  if (overflow || given != (empty ? 0 : bytes))
    file.fail(c10::str("tensor ", in_quotes(name), " has ", given, " bytes, which its shape does not"));
  return {name, *dtype, *shape, static_cast<std::uint64_t>((*offsets)[0]),
          static_cast<std::uint64_t>((*offsets)[1])};
}

std::map<std::string, std::string> read_metadata(const SafetensorsFile& file, const nlohmann::json& json) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) file.fail("its metadata is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) file.fail("its metadata " + in_quotes(key) + " is not text");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

at::Tensor read_tensor(const SafetensorsFile& file, std::uint64_t data, const Entry& entry) {
  auto tensor = at::empty(entry.shape, entry.dtype);
  file.read(data + entry.begin, tensor.mutable_data_ptr(), entry.end - entry.begin);
  if (entry.dtype == at::kBool)
    if (const auto reason = bad_bools(tensor.const_data_ptr(), tensor.nbytes()))
      file.fail("tensor " + in_quotes(entry.name) + " " + *reason);
  return tensor;
}

/// Adds the names that the writer omitted because the tensor also has another name.
void add_tied(Safetensors& file) {
  std::unordered_map<std::string, at::Tensor> known(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, first] : file.metadata)
    if (const auto found = known.find(first); found != known.end() && !known.contains(name))
      file.tensors.emplace_back(name, found->second);
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Moves tensors that share memory with one of an earlier name into the metadata.
NamedTensors without_tied(NamedTensors tensors, std::map<std::string, std::string>& metadata) {
  std::unordered_multimap<const void*, const std::pair<std::string, at::Tensor>*> by_memory;
  NamedTensors by_name = tensors;
  std::ranges::sort(by_name, [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& item : by_name) {
    const auto [begin, end] = by_memory.equal_range(item.second.storage().unsafeGetStorageImpl());
    const auto first = std::find_if(
        begin, end, [&](const auto& other) { return same_memory(item.second, other.second->second); });
    if (first == end)
      by_memory.emplace(item.second.storage().unsafeGetStorageImpl(), &item);
    else
      metadata[item.first] = first->second->first;
  }
  std::erase_if(tensors, [&](const auto& item) { return metadata.contains(item.first); });
  return tensors;
}

void check(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta() ||
        names_of(tensor.scalar_type()).safetensors.empty())
      throw std::invalid_argument(
          "tensor " + in_quotes(name) + " is of a kind that a .safetensors file cannot hold" +
          (tensor.defined() ? std::string(": ") + c10::toString(tensor.scalar_type()) : ""));
    if (name == "__metadata__" || metadata.contains(name) || !names.insert(name).second)
      throw std::invalid_argument("tensor " + in_quotes(name) + " has a name that is in use in the file");
  }
}

/// The header, preceded by its length and padded with blanks to align the data.
std::string header_of(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", names_of(tensor.scalar_type()).safetensors},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw std::invalid_argument("a tensor's name or the metadata is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

bool is_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  char brace = 0;
  if (file.size() < 9 || file.header_size() > kMaxHeader) return false;
  file.read(8, &brace, 1);
  return brace == '{';
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (file.size() < 9) file.fail("ends too early");
  const auto length = file.header_size();
  const auto header = read_header(file, length);
  std::vector<Entry> entries;
  Safetensors result;
  for (const auto& [name, json] : header.items())
    if (name == "__metadata__")
      result.metadata = read_metadata(file, json);
    else
      entries.push_back(make_entry(file, name, json));
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  const auto data = 8 + length;
  std::uint64_t at = 0;
  for (const auto& entry : entries) {
    if (entry.begin != at) file.fail("a hole or an overlap in the data before " + in_quotes(entry.name));
    at = entry.end;
  }
  if (at != file.size() - data)
    file.fail(c10::str("its tensors take ", at, " bytes, but ", file.size() - data, " follow the header"));
  for (const auto& entry : entries) result.tensors.emplace_back(entry.name, read_tensor(file, data, entry));
  add_tied(result);
  return result;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::map<std::string, std::string> metadata, const ValueOf& value_of) {
  metadata.emplace("format", "pt");
  check(tensors, metadata);
  auto kept = without_tied(tensors, metadata);
  // Larger elements first, so that every tensor is aligned.
  std::ranges::stable_sort(
      kept, [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  const auto header = header_of(kept, metadata);
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    file.append(header.data(), header.size());
    for (const auto& [name, tensor] : kept) {
      const auto value = value_of ? value_of(tensor) : tensor;
      const auto dense = value.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
      file.append(dense.const_data_ptr(), dense.nbytes());
    }
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
  });
}

}  // namespace ddprun::serialize
