#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

namespace ddprun::serialize {

/// A storage that a pickle refers to by its key: the record data/KEY of the zip around it.
struct StorageReference {
  c10::ScalarType dtype;
  std::string key;
  std::int64_t numel;
};

/// Returns the storage's memory on the CPU, the same for the same key: at least numel elements of dtype.
using OpenStorage = std::function<c10::Storage(const StorageReference&)>;

/// A pickle is malformed, too deep, or uses a name that is not allowed; one line, with the byte's position.
class UnpickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The value that a pickle describes, which is removed from the front of `bytes`. Interprets the opcodes that
/// torch.save writes and calls only functions on a list: OrderedDict, Counter, set, torch.Size, torch.device,
/// and those that rebuild dense tensors and parameters. Depth and size are limited.
///
/// bytes         begins with a pickle of protocol 2 (Python's data.pkl)
/// open_storage  called for every reference to a storage
/// returns       dict, OrderedDict and Counter as GenericDict, list and set as GenericList, tuple and Size as
///               Tuple, a dtype as the string "torch.float32", a device as "cuda:0"; attributes (_metadata)
///               and requires_grad are dropped
/// throws        UnpickleError; what open_storage throws
c10::IValue unpickle_first(std::string_view& bytes, const OpenStorage& open_storage);

/// The same; bytes after the pickle's end are ignored.
inline c10::IValue unpickle(std::string_view bytes, const OpenStorage& open_storage) {
  return unpickle_first(bytes, open_storage);
}

}  // namespace ddprun::serialize
