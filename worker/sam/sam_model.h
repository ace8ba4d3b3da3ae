#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <ddprun/train/state/state_dict_file.h>
#include "worker/config/config.h"
#include "worker/sam/model/sam.h"

namespace ddprun::sam {

/// Reads a model that transformers' SamModel.save_pretrained() or write_sam() wrote: a folder, or its
/// model.safetensors or pytorch_model.bin with config.json beside it. Of a run's folder, the best checkpoint.
///
/// throws  IoError naming the file: an invalid key of config.json, tensors that are missing, unexpected, not
///         floating point or of another shape than config.json says, or colours in preprocessor_config.json
///         that differ from SamProcessor's
Sam read_sam(const std::filesystem::path& path);

/// Writes a folder that SamModel.from_pretrained() and SamProcessor.from_pretrained() read:
/// model.safetensors, config.json and preprocessor_config.json.
///
/// throws  IoError naming the file
void write_sam(const std::filesystem::path& folder, const SamImpl& model);
/// The same for separate weights, such as a checkpoint's.
void write_sam(const std::filesystem::path& folder, const SamConfig& config, const train::StateDict& weights);

/// A hash of a tensor's shape and bytes, chained to `before`; not cryptographic.
std::uint64_t digest(const at::Tensor& tensor, std::uint64_t before = 0);

/// Keeps expensive results in a folder, each in a file named after its input, for all runs and ranks.
class TensorCache {
 public:
  /// folder   created if missing
  /// version  of the computation; ignores results of other versions
  /// throws   IoError if the folder cannot be created
  TensorCache(std::filesystem::path folder, std::uint64_t version);

  /// The result of compute() for this input, now or earlier, on the CPU. Replaces damaged files.
  /// throws  IoError for a file that cannot be written
  at::Tensor get(const at::Tensor& input, const std::function<at::Tensor()>& compute) const;

 private:
  std::filesystem::path folder_;
  std::uint64_t version_;
};

/// The configured model: read from --checkpoint, or a new one of --architecture, optionally with
/// --init-weights; with freezing and recomputation set up. --architecture is one of
///
///   small              128 pixels, patches of 8, 4 layers of 96, global attention in every second one; for
///                      training from scratch on a small machine
///   base, large, huge  the released ones
///   FILE               a config.json of transformers' SamModel
///
/// throws  UsageError, IoError
Sam make_sam_model(const worker::Config& config);

/// Maps pixel values, float [B, 3, S, S], to image embeddings [B, channels, grid, grid].
using Embedder = std::function<torch::Tensor(const torch::Tensor& pixel_values)>;

/// The model's image encoder; with --embedding-cache, which needs a frozen encoder, it stores results there.
/// throws  IoError, also when called
Embedder make_embedder(Sam model, const worker::Config& config);

/// `worker sam --predict IMAGE --point X,Y ... --checkpoint DIR --mask-out FILE`: predicts the mask of the
/// object at the points and writes it as a picture, and another one with its outline. With --page-out, writes
/// a page with the masks of all points.
///
/// argv     argv[0] is the task's name
/// returns  the exit code
/// throws   UsageError, IoError
int run_predict_command(int argc, char** argv);

}  // namespace ddprun::sam
