#pragma once

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/snapshot_memory.h>

namespace ddprun::serialize {

/// A copy of a value in the form that pickles to what torch.load(weights_only=True) reads: lists and dicts of
/// untyped elements, text in UTF-8, tensors detached and on the CPU. Tensors go on sharing memory, except for
/// views that need less than half of it together: these are cloned.
///
/// throws  std::invalid_argument for a kind of value that has no such form
c10::IValue portable_value(const c10::IValue& value);

/// The same, with tensors that share no memory with the value's: these may change while it is written. Waits
/// for the GPU where tensors are on one.
///
/// memory  what its tensors lie in; they are valid until memory.start_over()
c10::IValue snapshot(const c10::IValue& value, SnapshotMemory& memory);

}  // namespace ddprun::serialize
