#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "worker/sam/model/mask_decoder.h"
#include "worker/sam/model/prompt_encoder.h"
#include "worker/sam/model/vision_encoder.h"

namespace ddprun::sam {

/// Segment Anything (Kirillov et al. 2023). Parameters and buffers have the names of transformers' SamModel,
/// so weights can be exchanged. The position frequencies, which transformers lists under two names and
/// recently as a parameter, are one buffer, as in the authors' code.
class SamImpl : public torch::nn::Module {
 public:
  /// Draws new weights: the vision encoder's normal with config.initializer_range, its biases and positions
  /// 0; the frequencies normal with 1 and the rest by PyTorch's rules, as in the authors' code, except that
  /// attention between tokens and image begins with equal projections of queries and keys: a point attends to
  /// its surroundings.
  ///
  /// throws  std::invalid_argument if problem(config) is not empty
  explicit SamImpl(const SamConfig& config = {});

  const SamConfig& config() const { return config_; }

  /// image    float [B, 3, image_size, image_size]
  /// prompts  P per image
  /// returns  masks and scores for every prompt
  /// throws   std::invalid_argument naming a tensor of the wrong shape
  SamOutput forward(const torch::Tensor& image, const SamPrompts& prompts, bool multimask = true);

  /// The two halves of forward(), for several prompts about the same image.
  ///
  /// returns  float [B, output_channels, grid, grid], as transformers' get_image_embeddings()
  torch::Tensor image_embeddings(const torch::Tensor& image);
  SamOutput decode(const torch::Tensor& image_embeddings, const SamPrompts& prompts, bool multimask = true);

  /// Recomputes the image encoder's layers in backward instead of storing their intermediates.
  void set_gradient_checkpointing(bool on) { vision_encoder_->set_gradient_checkpointing(on); }

  /// Excludes parts from training. A frozen image encoder stores nothing for backward.
  void freeze_encoder();
  void freeze_prompt_encoder();

 private:
  void draw_weights();
  void check_prompts(const SamPrompts& prompts, std::int64_t images) const;

  SamConfig config_;
  SamPositionalEmbedding shared_image_embedding_;
  SamVisionEncoder vision_encoder_;
  SamPromptEncoder prompt_encoder_;
  SamMaskDecoder mask_decoder_;
};
TORCH_MODULE(Sam);

}  // namespace ddprun::sam
