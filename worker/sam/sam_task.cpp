// Segment Anything, fine-tuned or trained from scratch with point prompts.

#include <unistd.h>

#include <torch/types.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/data/dataset_files.h>
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/data/segmentation_dataset.h"
#include "worker/sam/mask_loss.h"
#include "worker/sam/sam_model.h"
#include "worker/tasks/registry.h"

namespace ddprun::sam {
namespace {

constexpr std::int64_t kShownSamples = 5;
constexpr std::size_t kCacheBytes = std::size_t{1} << 30;  // of decoded images, per rank

/// The masks of a batch at its pictures' own sizes: bool [H_i, W_i] each.
std::vector<torch::Tensor> own_masks(const SamProcessor& processor, const data::Batch& batch,
                                     const torch::Tensor& logits_B1LL) {
  std::vector<torch::Tensor> masks;
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    const auto& truth = truth_of(batch, i);
    masks.push_back(
        processor.mask_logits(logits_B1LL[i][0].to(torch::kFloat), {truth.size(0), truth.size(1)}) > 0);
  }
  return masks;
}

std::vector<std::pair<std::string, torch::Tensor>> measure(const SamProcessor& processor,
                                                           const data::Batch& batch,
                                                           const torch::Tensor& logits_B1LL) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> truths;
  for (std::int64_t i = 0; i < batch.size(); ++i) truths.push_back(truth_of(batch, i));
  const auto scores = mask_scores(own_masks(processor, batch, logits_B1LL), truths);
  return {{"dice", scores.dice}, {"iou", scores.iou}, {"pixel_acc", scores.pixel_accuracy}};
}

image::Image draw_samples(const SamProcessor& processor, const std::vector<train::Evaluated>& evaluated,
                          const std::string& set) {
  std::vector<PredictionRow> rows;
  for (const auto& [batch, result] : evaluated) {
    const auto masks = own_masks(processor, batch, result.scores);
    for (std::int64_t i = 0; i < batch.size(); ++i)
      rows.push_back(prediction_row(batch, i, masks[static_cast<std::size_t>(i)]));
  }
  return draw_prediction_rows(rows, set == "training set" ? "Training" : "Validation");
}

void add_data(train::Task& task, const worker::Config& config, const SamProcessor& processor) {
  const auto folder = data::find_data(config.data.source, {"nuclei", "nuclei-sample"});
  task.data_source = folder.string();
  SegmentationDataset::Options options;
  options.points = config.sam.points;
  if (options.points.empty()) options.points_per_image = static_cast<int>(config.sam.points_per_image);
  options.seed = config.train.seed;
  options.augment = config.data.augment;
  options.cache_bytes = kCacheBytes;
  const auto all = std::make_shared<SegmentationDataset>(folder, processor, options);
  const auto split = worker::split_for_validation(all, all->with_fixed_points(), config);
  task.train_set = config.model.eval.empty() ? split.train : all->with_fixed_points();
  task.validation_set = split.validation;
}

train::Task make_sam(const worker::Config& config) {
  train::Task task;
  auto model = worker::make_model(config, task, [&] { return make_sam_model(config); });
  const auto shape = model->config();
  const SamProcessor processor({.image_size = shape.vision.image_size, .mask_size = shape.mask_size()});

  add_data(task, config, processor);
  task.eval_batch_size = config.train.batch_size;
  task.measures = {"dice", "iou", "pixel_acc"};
  task.class_names = {"mask"};
  task.shapes_vary = true;  // by the pictures' sizes and numbers of points
  const auto loss = parse_mask_loss(config.model.loss);
  const auto embed = make_embedder(model, config);
  task.compute_loss = [=](const data::Batch& batch) mutable {
    const SamPrompts prompts{.points = points_of(batch), .labels = point_labels_of(batch)};
    const auto output = model->decode(embed(batch.input), prompts, /*multimask=*/false);
    const auto logits_B1LL = output.masks.squeeze(1);
    return train::BatchResult{mask_loss(loss, logits_B1LL, batch.target),
                              measure(processor, batch, logits_B1LL.detach()), logits_B1LL.detach()};
  };
  task.shown_samples = kShownSamples;
  task.draw_samples = [processor](const auto& evaluated, const auto& set) {
    return draw_samples(processor, evaluated, set);
  };
  task.write_weights = [shape](const std::filesystem::path& folder, const train::StateDict& weights) {
    write_sam(folder, shape, weights);
  };
  task.best_files = {"model.safetensors", "config.json", "preprocessor_config.json"};
  task.model_config = to_json(shape);
  task.train_line = worker::epoch_line;
  return task;
}

/// Called before reading the model, which takes a while. throws  IoError
void check_writable(const std::filesystem::path& mask) {
  const auto folder = mask.has_parent_path() ? mask.parent_path() : std::filesystem::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw IoError(mask, "cannot be written", errno);
}

/// A new model has everything to learn; one from --checkpoint has much to lose. Leaves settings unset that
/// apply only to new models or to drawn points, so that setting them elsewhere is an error.
void set_sam_defaults(worker::Config& config) {
  const bool is_new = config.sam.checkpoint.empty();
  auto& train = config.train;
  config.sam.architecture = is_new ? "small" : "";
  config.sam.points_per_image = config.sam.points.empty() ? 1 : 0;
  config.model.loss = "dice";
  config.data.augment = config.sam.embedding_cache.empty();  // which identifies images by their pixels
  config.data.val_split = is_new ? 0.25 : 0.1;
  train.epochs = is_new ? 400 : 20;  // two ranks take fewer steps per epoch
  train.batch_size = is_new ? 2 : 4;
  train.optim.optimizer.kind = train::OptimizerKind::kAdamW;
  train.optim.optimizer.lr = is_new ? 5e-4 : 1e-4;
  train.optim.optimizer.weight_decay = is_new ? std::optional(0.3) : std::nullopt;
  train.optim.warmup_steps = is_new ? 5 : 50;
  train.optim.schedule =
      is_new ? train::LrScheduleKind::kCosine : train::LrScheduleKind::kNone;  // over the whole run
  train.optim.ema = is_new ? 0.98 : 0;
  train.optim.clip_norm = 1.0;
  train.parallel.static_graph = true;
  train.checkpoint.filename = "sam-{epoch:02d}-{val_dice:.4f}";
  train.checkpoint.top_k = 3;
  train.checkpoint.monitor = "val_dice";
  train.checkpoint.patience = is_new ? 150 : 10;  // at first, a new model does not know what a point means
}

}  // namespace

int run_predict_command(int argc, char** argv) {
  std::filesystem::path image, checkpoint, mask_file;
  std::vector<std::string> points;
  settings::Command command;
  command.name = "worker sam";
  command.usage = "worker sam --predict IMAGE --point X,Y[,0] --checkpoint RUN|DIR|FILE --mask-out FILE";
  command.description = "with --predict: writes the mask of the object that the points are on, on the CPU.";
  command.settings = {
      settings::help_flag(),
      settings::path("predict", image, "a PNG or JPEG").type("IMAGE"),
      settings::list("point", points,
                     "a pixel of the object, or with ,0 a pixel outside of it; can be repeated")
          .type("X,Y[,0]"),
      settings::path("checkpoint", checkpoint,
                     "the model: a run's folder, or what SamModel of transformers has saved")
          .type("RUN|DIR|FILE"),
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

namespace ddprun::worker {

TaskEntry sam_task() {
  return {
      .name = "sam",
      .description = "Segment Anything with point prompts",
      .footer =
          "--data takes a folder with images/ and masks/ (pixels number the instances). Without it the task "
          "looks for nuclei in $DDPRUN_DATA and the cache folder (scripts/get_data.sh nuclei fetches it), "
          "then "
          "uses a sample of 12 images.\n"
          "--checkpoint takes what transformers' SamModel.save_pretrained wrote (defaults: --lr 1e-4, "
          "--warmup-steps 50, --weight-decay 0.01, --lr-schedule none, --epochs 20, --batch-size 4, "
          "--val-split 0.1, --patience 10, no --ema); without it a new model of --architecture is trained. "
          "The "
          "best weights go to best/ in the run folder, which SamModel.from_pretrained reads.\n"
          "worker sam --predict IMAGE --point X,Y --checkpoint RUN --mask-out FILE predicts a mask.",
      .leaves_unused = true,  // the encoders of boxes and masks and the score's net
      .set_defaults = sam::set_sam_defaults,
      .make = sam::make_sam,
  };
}

}  // namespace ddprun::worker
