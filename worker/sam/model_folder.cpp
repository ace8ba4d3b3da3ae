#include "worker/sam/model_folder.h"

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/safetensors.h>

namespace ddprun::train {

namespace fs = std::filesystem;

namespace {

ModelFiles with_config(const fs::path& weights) {
  const auto config = weights.parent_path() / "config.json";
  std::error_code unknown;
  if (!fs::exists(config, unknown))
    throw IoError(
        config,
        "does not exist, expected it beside " + weights.filename().string() +
            "; of a run, give best/ of its folder or one that `worker export CHECKPOINT FOLDER` writes");
  return {config, weights};
}

}  // namespace

ModelFiles find_model_files(const fs::path& path) {
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    throw IoError(path, "does not exist, expected a model's folder or file of weights");
  if (!fs::is_directory(path, unknown)) return with_config(path);
  for (const char* name : {"model.safetensors", "pytorch_model.bin"})
    if (fs::exists(path / name, unknown)) return with_config(path / name);
  for (const char* name : {"model.safetensors.index.json", "pytorch_model.bin.index.json"})
    if (fs::exists(path / name, unknown))
      throw IoError(path / name,
                    "has the weights in several files, expected one: save it with a larger max_shard_size");
  throw IoError(path, "holds no model, expected model.safetensors or pytorch_model.bin in it");
}

void write_model_folder(const fs::path& folder, const StateDict& weights,
                        const std::map<std::string, std::string>& texts) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw IoError(folder, "cannot be made", failure.value());
  serialize::write_safetensors(folder / "model.safetensors", weights);
  for (const auto& [name, text] : texts) write_file_atomic(folder / name, text);
}

}  // namespace ddprun::train
