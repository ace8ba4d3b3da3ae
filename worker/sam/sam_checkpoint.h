#pragma once

#include <filesystem>

#include <ddprun/train/state/state_dict_file.h>
#include "worker/sam/model/sam.h"

namespace ddprun::worker {

/// A model from what transformers' SamModel.save_pretrained() wrote, or write_sam() here: a folder, or its
/// model.safetensors or pytorch_model.bin with config.json beside it.
///
/// throws  IoError naming the file: the key of config.json with what was expected, or the tensors that are
/// missing, too
///         many, not of floating-point numbers or of another shape than config.json says; or the key of
///         preprocessor_config.json, if that is beside it, whose colours are not data::SamProcessor's
models::Sam read_sam(const std::filesystem::path& path);

/// The weights alone, into a model that is there.
void load_sam_weights(models::SamImpl& model, const std::filesystem::path& weights);

/// A folder that SamModel.from_pretrained() and SamProcessor.from_pretrained() read: model.safetensors,
/// config.json and preprocessor_config.json.
///
/// throws  IoError naming the file that could not be written
void write_sam(const std::filesystem::path& folder, const models::SamImpl& model);
/// The same of weights from elsewhere, such as a checkpoint's.
void write_sam(const std::filesystem::path& folder, const models::SamConfig& config,
               const train::StateDict& weights);

}  // namespace ddprun::worker
