#pragma once

#include <ddprun/ddp/managed_state.h>
#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// Checks that every rank's module has rank 0's parameters and buffers: names, order, shapes, types, strides,
/// layout, kind of device, and which parameters want a gradient. Every rank calls it, and every rank learns
/// the same. throws  std::invalid_argument, on all ranks, naming the first parameter that differs and the
/// ranks where
void check_same_module(const ProcessGroup& group, const ManagedState& state);

/// Checks what is wanted of any module: a parameter that wants a gradient; dense ones; all on one kind of
/// device. throws  std::invalid_argument naming the parameter
void check_suitable(const ManagedState& state);

}  // namespace ddprun::ddp
