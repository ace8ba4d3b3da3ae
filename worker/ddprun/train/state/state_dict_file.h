#pragma once

#include <utility>

#include <ddprun/serialize/portable_value.h>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// Tensors by name, in the file's or the module's order.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

/// Reads a model's weights from a .pt file (a bare state_dict, or a dict with one under "model" (ours) or
/// "state_dict" (Lightning)) or a .safetensors file, whichever it contains. Drops a "module." (DDP's wrapper)
/// that precedes every name, and logs this.
///
/// which   or else the averaged weights that our checkpoints store under "ema"
/// throws  IoError naming path and what was expected
enum class WeightsOf { kModel, kAverages, kAveragesIfAny };
StateDict read_weights(const std::filesystem::path& path, WeightsOf which = WeightsOf::kModel);

/// A file's weights; those in shards are read one by one on request.
struct OpenWeights {
  StateDict tensors;            ///< sharded ones have no memory
  serialize::ValueOf value_of;  ///< empty if none are sharded
  bool lightning = false;       ///< another program's, in Lightning's layout
};
/// throws  as read_weights()
OpenWeights open_weights(const std::filesystem::path& path, WeightsOf which);

/// Reads those that have no memory. Tied ones stay tied.
StateDict with_memory(StateDict tensors, const serialize::ValueOf& value_of);

/// The tensors of a state_dict in memory, such as TrainingState's.
/// source  the file named in errors
/// throws  IoError if it holds anything else
StateDict to_weights(const c10::IValue& state_dict, const std::filesystem::path& source);

/// The same for "ema". throws  IoError also if it is None
StateDict to_averaged_weights(const c10::IValue& ema, const std::filesystem::path& source);

/// Copies weights by name into the module's parameters and buffers, converting their dtype: all of them or,
/// if names or shapes do not fit, none. Drops what precedes every name ("backbone.", the attribute of a
/// LightningModule; "_orig_mod.", torch.compile's) if they fit without it, and logs this.
///
/// source  the file named in errors
/// throws  IoError listing missing, unexpected and misshapen tensors
void load_weights(torch::nn::Module& module, const StateDict& weights, const std::filesystem::path& source);

/// A module's parameters and buffers with the names and order of Python's state_dict(). Shares memory.
c10::impl::GenericDict state_dict(const torch::nn::Module& module);

/// A dict of tensors that share no memory with these.
c10::impl::GenericDict copied(const c10::impl::GenericDict& tensors);

}  // namespace ddprun::train
