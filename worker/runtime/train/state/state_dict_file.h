#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// Tensors by name, in the file's or the module's order.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

/// A model's weights, from what Python or this program wrote: a .pt file of a bare state_dict or of a dict
/// that has one under "model" (ours) or "state_dict" (Lightning), or a .safetensors file; told apart by
/// content. A "module." before every name (DDP's wrapper) is dropped.
///
/// throws  IoError naming path and what was expected
StateDict read_weights(const std::filesystem::path& path);

/// The same of the averaged weights that a checkpoint of ours has under "ema".
StateDict read_averaged_weights(const std::filesystem::path& path);

/// The tensors of a state_dict in memory, such as TrainingState's.
/// source  the file to name
/// throws  IoError if it holds anything else
StateDict to_weights(const c10::IValue& state_dict, const std::filesystem::path& source);

/// The same of what is under "ema". throws  IoError also if that is None: there are no averages
StateDict to_averaged_weights(const c10::IValue& ema, const std::filesystem::path& source);

/// Copies weights by name into the module's parameters and buffers, converting their dtype: all of them or,
/// when the names or shapes do not fit, none. Where they fit without a "model." (the attribute of a
/// LightningModule) or "_orig_mod." (torch.compile) before every name, it is dropped.
///
/// source  the file to name
/// throws  IoError with the missing, unexpected and misshapen tensors
void load_weights(torch::nn::Module& module, const StateDict& weights, const std::filesystem::path& source);

/// A module's parameters and buffers under PyTorch's names and in the order of Python's state_dict(); they
/// share memory with the module.
c10::impl::GenericDict state_dict(const torch::nn::Module& module);

}  // namespace ddprun::train
