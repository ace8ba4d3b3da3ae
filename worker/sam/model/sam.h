#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "worker/sam/model/mask_decoder.h"
#include "worker/sam/model/prompt_encoder.h"
#include "worker/sam/model/vision_encoder.h"

namespace ddprun::models {

/// Segment Anything (Kirillov et al. 2023), with the names of transformers' SamModel for its parameters and
/// buffers, so that weights go both ways. The frequencies of positions, which transformers has under two
/// names and of late as a parameter, are one buffer here, as in the authors' code.
class SamImpl : public torch::nn::Module {
 public:
  /// New weights: normal with config.initializer_range, but frequencies with 1, as its authors have it;
  /// biases and positions 0.
  ///
  /// throws  std::invalid_argument if misfit(config) has something to say
  explicit SamImpl(const SamConfig& config = {});

  const SamConfig& config() const { return config_; }

  /// image    float [B, 3, image_size, image_size]
  /// prompts  for each image P of them
  /// returns  masks and scores for every prompt
  /// throws   std::invalid_argument naming the tensor whose shape does not fit
  SamOutput forward(const torch::Tensor& image, const SamPrompts& prompts, bool multimask = true);

  /// The two halves of forward(), for more than one question about an image.
  ///
  /// returns  float [B, output_channels, grid, grid], as transformers' get_image_embeddings()
  torch::Tensor image_embeddings(const torch::Tensor& image);
  SamOutput decode(const torch::Tensor& image_embeddings, const SamPrompts& prompts, bool multimask = true);

  /// The image encoder's layers run a second time in backward instead of keeping what it needs.
  void set_gradient_checkpointing(bool on) { vision_encoder_->set_gradient_checkpointing(on); }

  /// These are not trained. A frozen image encoder keeps nothing for backward.
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

}  // namespace ddprun::models
