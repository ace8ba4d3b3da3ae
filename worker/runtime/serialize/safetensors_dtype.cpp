#include <ddprun/serialize/safetensors_dtype.h>

#include <utility>

namespace ddprun::serialize {
namespace {

constexpr std::pair<const char*, c10::ScalarType> kSafetensorsDtypes[] = {
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U64", c10::ScalarType::UInt64},
    {"U32", c10::ScalarType::UInt32},
    {"U16", c10::ScalarType::UInt16},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"C64", c10::ScalarType::ComplexFloat},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E4M3FNUZ", c10::ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E5M2FNUZ", c10::ScalarType::Float8_e5m2fnuz},
};

}  // namespace

std::optional<c10::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDtypes)
    if (known == name) return dtype;
  return std::nullopt;
}

const char* safetensors_name(c10::ScalarType dtype) {
  for (const auto& [name, known] : kSafetensorsDtypes)
    if (known == dtype) return name;
  return nullptr;
}

}  // namespace ddprun::serialize
