#pragma once

#include <functional>
#include <string>

#include "worker/config/config.h"
#include "worker/sam/model/sam.h"

namespace ddprun::worker {

/// The shape that --architecture names.
///
///   small              256 pixels, 4 layers of 192, attention over all of the image in the last: for
///   training from
///                      the beginning on a small machine; 9.2 million parameters
///   base, large, huge  the released ones
///   FILE               a config.json of transformers' SamModel
///
/// throws  UsageError if it is neither name nor file; IoError as read_sam_config()
models::SamConfig sam_architecture(const std::string& name);

/// The model that the configuration asks for: of --checkpoint, or a new one of --architecture with
/// --init-weights if there are; with what is frozen and recomputed as it says.
///
/// throws  UsageError, IoError
models::Sam make_sam_model(const Config& config);

/// From pixel values to image embeddings: float [B, 3, S, S] to [B, channels, grid, grid].
using Embedder = std::function<torch::Tensor(const torch::Tensor& pixel_values)>;

/// The model's image encoder; with --embedding-cache its results are kept there, and it must be frozen.
/// throws  IoError, also when it is called
Embedder make_embedder(models::Sam model, const Config& config);

}  // namespace ddprun::worker
