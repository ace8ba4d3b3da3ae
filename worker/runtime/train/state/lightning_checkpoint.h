#pragma once

#include <ATen/core/ivalue.h>

#include <ddprun/train/state/checkpoint.h>

namespace ddprun::train {

/// Steps, samples and so on of a file are refused above this: sums and products of them do not overflow.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 40;

/// The state as the dict that Lightning's Trainer saves (2.0 and later), which its fit(ckpt_path=...) and
/// LightningModule.load_from_checkpoint() read:
///
///   {"state_dict": {PREFIX + name: ...}, "optimizer_states": [...], "lr_schedulers": [...] or [],
///    ["MixedPrecision": ...,] "epoch": int, "global_step": int, "loops": {"fit_loop": ..., ...},
///    "callbacks": {"EarlyStopping{'monitor': ...}": ...}, "hyper_parameters": the configuration and
///    "learning_rate", "hparams_name": "kwargs", "pytorch-lightning_version": "2.0.0",
///    "ddprun": what Lightning has no place for}
///
/// Without an optimizer: only weights, as save_weights_only=True leaves them. The state must be whole.
c10::IValue to_lightning(const TrainingState& state);

/// Whether a file's value has Lightning's layout.
bool is_lightning(const c10::IValue& value);

/// Whether it also holds a state of ours.
bool is_our_lightning(const c10::IValue& value);

/// The dict that to_value() would have made from the state in Lightning's dict, as far as present; returns
/// any other value unchanged. Another program's weights keep their prefix. Lightning does not record ranks
/// and batch size: "world_size" is 0, and "samples" of "position" counts a rank's batches.
/// throws  std::invalid_argument naming the key whose value has the wrong type
c10::IValue from_lightning(const c10::IValue& value);

}  // namespace ddprun::train
