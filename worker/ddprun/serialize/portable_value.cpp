#include <ddprun/serialize/portable_value.h>

#include <fcntl.h>
#include <unistd.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace ddprun::serialize {
namespace {

constexpr int kMaxValueDepth = 100;

/// How the value's tensors use one storage.
struct StorageUse {
  at::ScalarType dtype;
  std::size_t used_bytes = 0;
  bool one_dtype = true;
  at::Tensor copy = {};  // all of it on the CPU, once needed
};

std::string valid_utf8(const std::string& text) {
  const auto json = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(json).get<std::string>();
}

class Converter {
 public:
  /// memory  where to copy tensors to; nullptr: copy them only where necessary
  explicit Converter(StagingMemory* memory) : memory_(memory) {}

  c10::IValue convert(const c10::IValue& value) {
    count(value, 0);
    auto result = copy(value);
    for (const auto device : devices_)
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    return result;
  }

 private:
  void count(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
        tensor.is_neg() || tensor.is_meta())
      throw std::invalid_argument("only dense tensors can be written to a .pt file");
    if (names_of(tensor.scalar_type()).storage.empty())
      throw std::invalid_argument(std::string("a tensor of ") + c10::toString(tensor.scalar_type()) +
                                  " cannot be written to a .pt file");
    const auto [use, is_new] =
        uses_.try_emplace(tensor.storage().unsafeGetStorageImpl(), StorageUse{tensor.scalar_type()});
    use->second.used_bytes += tensor.nbytes();
    if (use->second.dtype != tensor.scalar_type()) use->second.one_dtype = false;
  }

  void count(const c10::IValue& value, int depth) {
    if (depth > kMaxValueDepth) throw std::invalid_argument("a value nested too deeply for a .pt file");
    if (value.isTensor()) return count(value.toTensor());
    if (value.isGenericDict())
      for (const auto& item : value.toGenericDict()) {
        if (!item.key().isString() && !item.key().isInt())
          throw std::invalid_argument("a dict's key for a .pt file is a " + item.key().tagKind());
        count(item.value(), depth + 1);
      }
    else if (value.isList())
      for (const c10::IValue& element : value.toListRef()) count(element, depth + 1);
    else if (value.isTuple())
      for (const auto& element : value.toTupleRef().elements()) count(element, depth + 1);
    else if (!value.isString() && !value.isInt() && !value.isDouble() && !value.isBool() && !value.isNone())
      throw std::invalid_argument("a " + value.tagKind() + " cannot be written to a .pt file");
  }

  /// Python reads a whole storage with one dtype.
  bool cloned(const at::Tensor& tensor) const {
    const auto& use = uses_.at(tensor.storage().unsafeGetStorageImpl());
    const auto bytes = tensor.storage().nbytes();
    return !use.one_dtype || bytes % tensor.element_size() != 0 || use.used_bytes < bytes / 2;
  }

  /// A copy on the CPU that shares no memory.
  at::Tensor copy_alone(const at::Tensor& tensor) {
    if (memory_ == nullptr)
      return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    const bool from_gpu = !tensor.is_cpu();
    if (from_gpu && std::ranges::find(devices_, tensor.device()) == devices_.end())
      devices_.push_back(tensor.device());
    const auto strides = at::infer_dense_strides(tensor.sizes(), tensor.strides());
    const auto target = memory_->take(tensor.nbytes(), from_gpu).view(tensor.scalar_type());
    const auto result = target.as_strided(tensor.sizes(), strides);
    result.copy_(tensor, /*non_blocking=*/from_gpu);
    return result;
  }

  at::Tensor copy(const at::Tensor& tensor) {
    const auto plain = tensor.detach();
    if (cloned(plain)) return copy_alone(plain);
    if (plain.is_cpu() && memory_ == nullptr) return plain;
    auto& use = uses_.at(plain.storage().unsafeGetStorageImpl());
    if (!use.copy.defined()) {
      const auto numel = static_cast<std::int64_t>(plain.storage().nbytes() / plain.element_size());
      use.copy = copy_alone(plain.as_strided({numel}, {1}, 0));
    }
    return use.copy.as_strided(plain.sizes(), plain.strides(), plain.storage_offset());
  }

  c10::IValue copy(const c10::IValue& value) {
    if (value.isTensor()) return copy(value.toTensor());
    if (value.isString()) return valid_utf8(value.toStringRef());
    if (value.isGenericDict()) {
      const auto dict = value.toGenericDict();
      c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
      if (!dict.empty() && dict.begin()->key().isInt()) result.unsafeSetKeyType(c10::IntType::get());
      for (const auto& item : dict) result.insert_or_assign(copy(item.key()), copy(item.value()));
      return result;
    }
    if (value.isList()) {
      c10::impl::GenericList result(c10::AnyType::get());
      for (const c10::IValue& element : value.toListRef()) result.push_back(copy(element));
      return result;
    }
    if (value.isTuple()) {
      std::vector<c10::IValue> elements;
      for (const auto& element : value.toTupleRef().elements()) elements.push_back(copy(element));
      return c10::ivalue::Tuple::create(std::move(elements));
    }
    return value;
  }

  StagingMemory* memory_;
  std::unordered_map<const void*, StorageUse> uses_;
  std::vector<at::Device> devices_;  // with copies in progress
};

}  // namespace

at::Tensor StagingMemory::take(std::size_t count, bool pinned) {
  if (next_ == buffers_.size()) buffers_.emplace_back();
  auto& buffer = buffers_[next_++];
  if (buffer.bytes.defined() && buffer.bytes.nbytes() == count && buffer.pinned == pinned)
    return buffer.bytes;
  buffer = {};  // first, to free its memory
  const auto options = at::TensorOptions(at::kByte).pinned_memory(pinned);
  buffer = {at::empty({static_cast<std::int64_t>(count)}, options), pinned};
  return buffer.bytes;
}

std::size_t StagingMemory::bytes() const {
  std::size_t sum = 0;
  for (const auto& buffer : buffers_) sum += buffer.bytes.nbytes();
  return sum;
}

c10::IValue portable_value(const c10::IValue& value) { return Converter(nullptr).convert(value); }

c10::IValue stage(const c10::IValue& value, StagingMemory& memory) {
  memory.start_over();
  return Converter(&memory).convert(value);
}

namespace {

constexpr DtypeNames kDtypes[] = {
    {"torch.FloatStorage", "torch.float32", "F32", c10::ScalarType::Float},
    {"torch.DoubleStorage", "torch.float64", "F64", c10::ScalarType::Double},
    {"torch.HalfStorage", "torch.float16", "F16", c10::ScalarType::Half},
    {"torch.BFloat16Storage", "torch.bfloat16", "BF16", c10::ScalarType::BFloat16},
    {"torch.LongStorage", "torch.int64", "I64", c10::ScalarType::Long},
    {"torch.IntStorage", "torch.int32", "I32", c10::ScalarType::Int},
    {"torch.ShortStorage", "torch.int16", "I16", c10::ScalarType::Short},
    {"torch.CharStorage", "torch.int8", "I8", c10::ScalarType::Char},
    {"torch.ByteStorage", "torch.uint8", "U8", c10::ScalarType::Byte},
    {"torch.BoolStorage", "torch.bool", "BOOL", c10::ScalarType::Bool},
    {"torch.ComplexFloatStorage", "torch.complex64", "C64", c10::ScalarType::ComplexFloat},
    {"torch.ComplexDoubleStorage", "torch.complex128", "", c10::ScalarType::ComplexDouble},
    {"", "torch.complex32", "", c10::ScalarType::ComplexHalf},
    {"", "torch.uint16", "U16", c10::ScalarType::UInt16},
    {"", "torch.uint32", "U32", c10::ScalarType::UInt32},
    {"", "torch.uint64", "U64", c10::ScalarType::UInt64},
    {"", "torch.float8_e4m3fn", "F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"", "torch.float8_e5m2", "F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"", "torch.float8_e4m3fnuz", "F8_E4M3FNUZ", c10::ScalarType::Float8_e4m3fnuz},
    {"", "torch.float8_e5m2fnuz", "F8_E5M2FNUZ", c10::ScalarType::Float8_e5m2fnuz},
    {"torch.storage.UntypedStorage", "", "", c10::ScalarType::Byte},
};

}  // namespace

DtypeNames names_of(c10::ScalarType dtype) {
  for (const auto& known : kDtypes)
    if (known.type == dtype) return known;
  return {"", "", "", dtype};
}

std::optional<c10::ScalarType> dtype_named(std::string_view name, std::string_view DtypeNames::*kind) {
  for (const auto& known : kDtypes)
    if (known.*kind == name && !name.empty()) return known.type;
  return std::nullopt;
}

std::optional<std::string> bad_bools(const void* bytes, std::size_t count) {
  const auto* byte = static_cast<const unsigned char*>(bytes);
  if (std::all_of(byte, byte + count, [](unsigned char value) { return value <= 1; })) return std::nullopt;
  return "holds bools that are neither 0 nor 1";
}

OutputFile::OutputFile(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)),
      error_(fd_ ? 0 : errno) {}

std::size_t OutputFile::append(const void* bytes, std::size_t count) {
  if (error_ == 0 && !write_all(fd_.get(), {static_cast<const char*>(bytes), count})) error_ = errno;
  return count;
}

void OutputFile::settle() {
  // Some file systems have no fsync (EINVAL).
  if (error_ == 0 && ::fsync(fd_.get()) != 0 && errno != EINVAL) error_ = errno;
  if (error_ == 0) ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace ddprun::serialize
