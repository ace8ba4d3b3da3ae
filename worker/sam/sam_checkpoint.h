#pragma once

#include <filesystem>

#include <ddprun/train/state/state_dict_file.h>
#include "worker/sam/model/sam.h"

namespace ddprun::sam {

/// Reads a model that transformers' SamModel.save_pretrained() or write_sam() wrote: a folder, or its
/// model.safetensors or pytorch_model.bin with config.json beside it.
///
/// throws  IoError naming the file: an invalid key of config.json, tensors that are missing, unexpected, not
///         floating point or of another shape than config.json says, or colours in preprocessor_config.json
///         that differ from SamProcessor's
Sam read_sam(const std::filesystem::path& path);

/// Loads only the weights into an existing model.
void load_sam_weights(SamImpl& model, const std::filesystem::path& weights);

/// Writes a folder that SamModel.from_pretrained() and SamProcessor.from_pretrained() read:
/// model.safetensors, config.json and preprocessor_config.json.
///
/// throws  IoError naming the file
void write_sam(const std::filesystem::path& folder, const SamImpl& model);
/// The same for separate weights, such as a checkpoint's.
void write_sam(const std::filesystem::path& folder, const SamConfig& config, const train::StateDict& weights);

}  // namespace ddprun::sam
