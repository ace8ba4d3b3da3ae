#pragma once

#include <string>
#include <vector>

#include <ddprun/ddp/model_tensors.h>
#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// A module's parameters and buffers except ignored ones. A tensor with several names appears once, under the
/// first that is not ignored.
struct ReplicatedState {
  std::vector<NamedTensor> parameters, buffers;

  bool has_trainable() const;                                ///< whether a parameter requires a gradient
  std::vector<at::Tensor> tensors(bool with_buffers) const;  ///< parameters without autograd, then buffers
};

/// ignore  names as in named_parameters() and named_buffers()
/// throws  std::invalid_argument if the module has no such name
ReplicatedState replicated_state(const ModelTensors& model, const std::vector<std::string>& ignore);

/// Only the buffers, as they are now: a module may replace them.
std::vector<at::Tensor> replicated_buffers(const ModelTensors& model, const std::vector<std::string>& ignore);

/// For each of the parameters, whether its gradient is sparse, as an Embedding's may be.
std::vector<bool> expect_sparse_gradients(const ModelTensors& model,
                                          const std::vector<at::Tensor>& parameters);

/// Checks that every rank's module has rank 0's parameters and buffers: names, order, shapes, types, strides,
/// layout, kind of device, and requires_grad. Every rank calls it.
/// throws  std::invalid_argument, on all ranks, naming the first parameter that differs and the ranks where
///         it does
void check_same_module(const ProcessGroup& group, const ReplicatedState& state);

/// Checks that a parameter requires a gradient, and all are dense and on one kind of device.
/// throws  std::invalid_argument naming the parameter
void check_suitable(const ReplicatedState& state);

}  // namespace ddprun::ddp
