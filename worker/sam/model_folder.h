#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {

/// A model as Hugging Face's libraries keep it: a folder with config.json and the weights.
struct ModelFiles {
  std::filesystem::path config, weights;
};

/// What `path` means: such a folder, whose weights are model.safetensors or else pytorch_model.bin, or a file
/// of weights with config.json beside it.
///
/// throws  IoError naming path if there are no weights, or if they are in several files; naming config.json
/// if
///         that is missing
ModelFiles find_model_files(const std::filesystem::path& path);

/// Writes such a folder, which is made where there is none: the weights as model.safetensors first, then the
/// texts by their files' names, each file at once or not at all.
///
/// throws  IoError naming path; std::invalid_argument as write_safetensors()
void write_model_folder(const std::filesystem::path& folder, const StateDict& weights,
                        const std::map<std::string, std::string>& texts);

}  // namespace ddprun::train
