#include <ddprun/serialize/element_types.h>

#include <algorithm>

namespace ddprun::serialize {
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

}  // namespace ddprun::serialize
