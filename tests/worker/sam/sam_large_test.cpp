// SAM base at its full size against transformers', with random weights: takes a minute and 4 GB of memory.
#include <torch/types.h>

#include <map>
#include <string>

#include <ddprun/common/files.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "worker/sam/sam_model.h"

using namespace ddprun;
using namespace ddprun::test;

TEST_CASE("SAM base gives transformers' masks for an image of 1024 x 1024", "[sam_large][.slow]") {
  const TempDir folder;
  check_python(folder.path(), "transformers", R"(
import torch
from safetensors.torch import save_file
from transformers import SamConfig, SamModel
torch.manual_seed(0)
torch.set_num_threads(2)
config = SamConfig()
config.vision_config.initializer_range = 0.02
model = SamModel(config)
with torch.no_grad():  # which are new zeros, or of frequencies beyond single precision's reach
    for name, parameter in model.named_parameters():
        if "rel_pos" in name or "pos_embed" in name:
            parameter.normal_(0, 0.1)
    model.shared_image_embedding.positional_embedding.normal_()
model.save_pretrained("model")
image, points = torch.randn(1, 3, 1024, 1024), torch.rand(1, 2, 1, 2) * 1024
with torch.no_grad():
    output = model(pixel_values=image, input_points=points)
save_file(dict(image=image, points=points, masks=output.pred_masks.contiguous(),
               scores=output.iou_scores.contiguous()), "case.safetensors")
)");
  torch::set_num_threads(2);
  const auto file = serialize::read_safetensors(folder.path() / "case.safetensors").tensors;
  std::map<std::string, torch::Tensor> expected(file.begin(), file.end());
  auto model = sam::read_sam(folder.path() / "model");
  const torch::NoGradGuard no_grad;
  const auto [masks, scores] = model->forward(expected["image"], {.points = expected["points"]});
  const auto error = [&](const torch::Tensor& ours, const char* name) {
    return ((ours - expected[name]).norm() / expected[name].norm()).item<double>();
  };
  CHECK(error(masks, "masks") < 1e-4);
  CHECK(error(scores, "scores") < 1e-4);
}
