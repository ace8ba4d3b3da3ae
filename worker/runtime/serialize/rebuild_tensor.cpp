#include <ddprun/serialize/rebuild_tensor.h>

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include <ddprun/common/text.h>

namespace ddprun::serialize {
namespace {

constexpr std::size_t kMaxDimensions = 64;

struct DtypeNames {
  std::string_view storage;  // of the older, typed storages; newer types have none
  std::string_view dtype;
  c10::ScalarType type;
};
constexpr DtypeNames kDtypes[] = {
    {"torch.FloatStorage", "torch.float32", c10::ScalarType::Float},
    {"torch.DoubleStorage", "torch.float64", c10::ScalarType::Double},
    {"torch.HalfStorage", "torch.float16", c10::ScalarType::Half},
    {"torch.BFloat16Storage", "torch.bfloat16", c10::ScalarType::BFloat16},
    {"torch.LongStorage", "torch.int64", c10::ScalarType::Long},
    {"torch.IntStorage", "torch.int32", c10::ScalarType::Int},
    {"torch.ShortStorage", "torch.int16", c10::ScalarType::Short},
    {"torch.CharStorage", "torch.int8", c10::ScalarType::Char},
    {"torch.ByteStorage", "torch.uint8", c10::ScalarType::Byte},
    {"torch.BoolStorage", "torch.bool", c10::ScalarType::Bool},
    {"torch.ComplexFloatStorage", "torch.complex64", c10::ScalarType::ComplexFloat},
    {"torch.ComplexDoubleStorage", "torch.complex128", c10::ScalarType::ComplexDouble},
    {"", "torch.complex32", c10::ScalarType::ComplexHalf},
    {"", "torch.uint16", c10::ScalarType::UInt16},
    {"", "torch.uint32", c10::ScalarType::UInt32},
    {"", "torch.uint64", c10::ScalarType::UInt64},
    {"", "torch.float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
    {"", "torch.float8_e5m2", c10::ScalarType::Float8_e5m2},
    {"", "torch.float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
    {"", "torch.float8_e5m2fnuz", c10::ScalarType::Float8_e5m2fnuz},
};

std::optional<std::vector<std::int64_t>> integers(const c10::IValue& tuple) {
  if (!tuple.isTuple()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& element : tuple.toTupleRef().elements()) {
    if (!element.isInt() || element.toInt() < 0) return std::nullopt;
    numbers.push_back(element.toInt());
  }
  return numbers;
}

}  // namespace

std::optional<c10::ScalarType> storage_dtype(std::string_view name) {
  if (name == "torch.storage.UntypedStorage") return c10::ScalarType::Byte;
  for (const auto& known : kDtypes)
    if (known.storage == name && !name.empty()) return known.type;
  return std::nullopt;
}

bool has_storage_name(c10::ScalarType dtype) {
  return std::any_of(std::begin(kDtypes), std::end(kDtypes),
                     [&](const auto& known) { return known.type == dtype && !known.storage.empty(); });
}

std::optional<c10::ScalarType> dtype_named(std::string_view name) {
  for (const auto& known : kDtypes)
    if (known.dtype == name) return known.type;
  return std::nullopt;
}

std::optional<std::string> bad_bools(const void* bytes, std::size_t count) {
  const auto* byte = static_cast<const unsigned char*>(bytes);
  if (std::all_of(byte, byte + count, [](unsigned char value) { return value <= 1; })) return std::nullopt;
  return "holds bools that are neither 0 nor 1";
}

std::optional<std::string> problem(const TensorGeometry& geometry, const StorageReference& storage) {
  const auto sizes = integers(geometry.size);
  const auto strides = integers(geometry.stride);
  if (!geometry.offset.isInt() || geometry.offset.toInt() < 0 || !sizes || !strides ||
      sizes->size() != strides->size() || sizes->size() > kMaxDimensions)
    return "a tensor whose offset, size and stride are not a number and two tuples of as many numbers, all "
           ">= 0";
  // Neither may overflow int64, nor the product without zeros: TensorImpl multiplies in that order.
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(storage.dtype));
  std::int64_t last = geometry.offset.toInt();
  bool overflow = false;
  bool empty = false;
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    const auto size = (*sizes)[i];
    std::int64_t reach = 0;
    if (size == 0) empty = true;
    if (size == 0) continue;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
    overflow |= __builtin_mul_overflow(size - 1, (*strides)[i], &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  const bool fits = empty ? geometry.offset.toInt() <= storage.numel : last < storage.numel;
  if (!overflow && fits) return std::nullopt;
  return "a tensor reaches beyond its storage " + in_quotes(storage.key) + " of " +
         std::to_string(storage.numel) + " elements";
}

at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype,
                          const TensorGeometry& geometry) {
  const auto sizes = integers(geometry.size).value();
  const auto strides = integers(geometry.stride).value();
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, geometry.offset.toInt());
  return tensor;
}

}  // namespace ddprun::serialize
