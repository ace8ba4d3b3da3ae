#pragma once

#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What DistributedDataParallel keeps the same on all ranks: a module's parameters and buffers but those to
/// be ignored. A tensor that the module has under several names is here once, under the first that is not
/// ignored.
struct ReplicatedState {
  std::vector<NamedTensor> parameters, buffers;

  std::vector<at::Tensor> trainable() const;                 ///< the parameters that require a gradient
  std::vector<std::string> trainable_names() const;          ///< theirs, in the same order
  std::vector<at::Tensor> tensors(bool with_buffers) const;  ///< parameters without autograd, then buffers
};

/// ignore  names as in named_parameters() and named_buffers()
/// throws  std::invalid_argument if the module has nothing of such a name
ReplicatedState replicated_state(const torch::nn::Module& module, const std::vector<std::string>& ignore);

/// The same, now, of the buffers alone: a module may replace its buffers.
std::vector<at::Tensor> replicated_buffers(const torch::nn::Module& module,
                                           const std::vector<std::string>& ignore);

/// For each of the parameters, whether an Embedding or EmbeddingBag gives it a sparse gradient.
std::vector<bool> expect_sparse_gradients(const torch::nn::Module& module,
                                          const std::vector<at::Tensor>& parameters);

/// Checks that every rank's module has rank 0's parameters and buffers: names, order, shapes, types, strides,
/// layout, kind of device, and which parameters want a gradient. Every rank calls it, and every rank learns
/// the same. throws  std::invalid_argument, on all ranks, naming the first parameter that differs and the
/// ranks where
void check_same_module(const ProcessGroup& group, const ReplicatedState& state);

/// Checks what is wanted of any module: a parameter that wants a gradient; dense ones; all on one kind of
/// device. throws  std::invalid_argument naming the parameter
void check_suitable(const ReplicatedState& state);

}  // namespace ddprun::ddp
