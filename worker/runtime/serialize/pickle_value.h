#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {

/// A name of a Python module that the pickle may use, such as "torch._utils._rebuild_tensor_v2".
struct Global {
  std::string name;
};

/// How deep and how large a container's content is, and whether it lies in another one. A container that does
/// is complete: that it may not change any more keeps cycles out, and the depth and the size right.
struct Nesting {
  int depth = 1;
  std::int64_t elements = 1;  // as often as one meets them when walking through
  bool closed = false;
};

struct Value;
using Arguments = std::vector<Value>;  // a tuple that holds what an IValue cannot

struct Value {
  std::variant<c10::IValue, Global, StorageReference, std::shared_ptr<const Arguments>> what;
  std::shared_ptr<Nesting> nesting = nullptr;  // of a list, a dict or a tuple
};

}  // namespace ddprun::serialize
