#include "worker/sam/predict_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/sam_model.h"

namespace ddprun::sam {
namespace {

/// Called before reading the model, which takes a while. throws  IoError
void check_writable(const std::filesystem::path& mask) {
  const auto folder = mask.has_parent_path() ? mask.parent_path() : std::filesystem::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw IoError(mask, "cannot be written", errno);
}

}  // namespace

bool wants_prediction(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--predict" || word.starts_with("--predict=")) return true;
  }
  return false;
}

int run_predict_command(int argc, char** argv) {
  std::filesystem::path image, checkpoint, mask_file;
  std::vector<std::string> points;
  settings::Command command;
  command.name = "worker sam";
  command.usage = "worker sam --predict IMAGE --point X,Y[,0] --checkpoint DIR|FILE --mask-out FILE";
  command.description = "with --predict: writes the mask of the object that the points are on, on the CPU.";
  command.settings = {
      settings::help_flag(),
      settings::path("predict", image, "a PNG or JPEG").type("IMAGE"),
      settings::list("point", points,
                     "a pixel of the object, or with ,0 a pixel outside of it; can be repeated")
          .type("X,Y[,0]"),
      settings::path("checkpoint", checkpoint,
                     "the model: best/ of a run folder, or what SamModel of transformers has saved")
          .type("DIR|FILE"),
      settings::path("mask-out", mask_file, "PNG to write: 255 where the mask is, 0 elsewhere"),
  };
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "--predict" && (words[1] == "--help" || words[1] == "-h"))
    words.erase(words.begin());
  if (!apply_words(words, command, {"predict", "point", "checkpoint", "mask-out"})) return EXIT_SUCCESS;

  const auto prompted = read_prompted_picture(image, points);
  check_writable(mask_file);
  const torch::NoGradGuard no_grad;
  auto model = read_sam(checkpoint);
  model->eval();
  const SamProcessor processor(
      {.image_size = model->config().vision.image_size, .mask_size = model->config().mask_size()});
  const auto batch = make_prompted_batch({prompted}, processor);
  const auto output =
      model->forward(batch.input, {.points = points_of(batch), .labels = point_labels_of(batch)},
                     /*multimask=*/false);
  const auto mask =
      processor.mask_logits(output.masks[0][0][0], {prompted.picture->height, prompted.picture->width}) > 0;
  write_mask(mask_file, mask);
  std::cout << "wrote " << mask_file.string() << ": " << mask.sum().item<std::int64_t>() << " of "
            << mask.numel() << " pixels" << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace ddprun::sam
