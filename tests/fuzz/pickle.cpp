// A pickle as torch.save writes it inside its files: the input is the pickle. Storages are small and of
// zeros.
#include <ddprun/serialize/unpickler.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
namespace {

constexpr std::int64_t kMaxStorage = 1 << 16;

c10::Storage open_storage(std::map<std::string, at::Tensor>& storages,
                          const serialize::StorageReference& wanted) {
  if (wanted.numel > kMaxStorage) throw serialize::UnpickleError("no such storage");
  auto& bytes = storages[wanted.key];
  if (!bytes.defined())
    bytes = at::zeros({wanted.numel * static_cast<std::int64_t>(c10::elementSize(wanted.dtype))}, at::kByte);
  if (bytes.nbytes() < static_cast<std::size_t>(wanted.numel) * c10::elementSize(wanted.dtype))
    throw serialize::UnpickleError("another size than before");
  return bytes.storage();
}

/// Touches the first and the last element of each tensor, and every container.
void walk(const c10::IValue& value, int depth) {
  expect(depth <= 101, "the depth is limited");
  if (value.isTensor()) {
    const auto tensor = value.toTensor();
    if (tensor.numel() == 0) return;
    const auto* first = static_cast<const volatile char*>(tensor.const_data_ptr());
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    static_cast<void>(first[0]);
    static_cast<void>(first[(last + 1) * static_cast<std::int64_t>(tensor.element_size()) - 1]);
  }
  if (value.isGenericDict())
    for (const auto& item : value.toGenericDict()) {
      walk(item.key(), depth + 1);
      walk(item.value(), depth + 1);
    }
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) walk(element, depth + 1);
  if (value.isTuple())
    for (const auto& element : value.toTupleRef().elements()) walk(element, depth + 1);
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  std::map<std::string, at::Tensor> storages;
  try {
    const auto open = [&](const auto& wanted) { return fuzz::open_storage(storages, wanted); };
    fuzz::walk(serialize::unpickle(fuzz::text_of(data, size), open), 0);
  } catch (const serialize::UnpickleError& error) {
    fuzz::expect_message(error.what());
  }
  return 0;
}
