// Segment Anything, fine-tuned or trained from scratch with point prompts.

#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddprun/data/dataset_files.h>
#include "worker/sam/data/prediction_rows.h"
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/data/segmentation_dataset.h"
#include "worker/sam/mask_loss.h"
#include "worker/sam/sam_model.h"
#include "worker/tasks/registry.h"

namespace ddprun::sam {
namespace {

constexpr std::int64_t kShownSamples = 5;
constexpr std::size_t kCacheBytes = std::size_t{1} << 30;  // of decoded images, per rank

/// The masks of picture i's prompts at its own size: bool [P, H_i, W_i].
torch::Tensor own_masks(const SamProcessor& processor, const data::Batch& batch,
                        const torch::Tensor& logits_BPLL, std::int64_t i) {
  const auto& truths = truths_of(batch, i);
  return processor.mask_logits(logits_BPLL[i].to(torch::kFloat), {truths.size(1), truths.size(2)}) > 0;
}

/// Of each picture, the means over its prompts.
std::vector<std::pair<std::string, torch::Tensor>> measure(const SamProcessor& processor,
                                                           const data::Batch& batch,
                                                           const torch::Tensor& logits_BPLL) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> masks, truths;
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    for (const auto& mask : own_masks(processor, batch, logits_BPLL, i).unbind()) masks.push_back(mask);
    for (const auto& truth : truths_of(batch, i).unbind()) truths.push_back(truth);
  }
  const auto scores = mask_scores(masks, truths);
  const auto of_pictures = [&](const torch::Tensor& all) { return all.view({batch.size(), -1}).mean(1); };
  return {{"dice", of_pictures(scores.dice)},
          {"iou", of_pictures(scores.iou)},
          {"pixel_acc", of_pictures(scores.pixel_accuracy)}};
}

/// The first prompts of pictures with their Dice, the worst first.
std::vector<PredictionRow> rows_of(const SamProcessor& processor,
                                   const std::vector<train::Evaluated>& evaluated) {
  std::vector<PredictionRow> rows;
  for (const auto& [batch, result] : evaluated)
    for (std::int64_t i = 0; i < batch.size(); ++i) {
      const auto mask = own_masks(processor, batch, result.scores, i)[0];
      rows.push_back(prediction_row(batch, i, mask));
      rows.back().dice = dice_score(mask, truth_of(batch, i)).item<double>();
    }
  std::ranges::stable_sort(rows, {}, &PredictionRow::dice);
  return rows;
}

/// Sample i alone, without the model's input, which is not drawn.
train::Evaluated sample_of(const train::Evaluated& evaluated, std::int64_t i) {
  const auto& [batch, result] = evaluated;
  const auto alone = [i](const torch::Tensor& all) { return all.narrow(0, i, 1); };
  train::Evaluated sample{{torch::empty({1, 0}), alone(batch.target)},
                          {alone(result.losses), {}, alone(result.scores)}};
  for (const auto part : {kPoints, kPointLabels, kOriginalSizes, kResizedSizes})
    sample.batch.extra.push_back(alone(batch.extra[part]));
  sample.batch.extra.push_back(truths_of(batch, i));
  sample.batch.shown = {picture_of(batch, i)};
  for (const auto& [name, values] : result.measures) sample.result.measures.emplace_back(name, alone(values));
  return sample;
}

void add_data(train::Task& task, const worker::Config& config, const SamProcessor& processor) {
  const auto folder = data::find_data(config.data.source, {"nuclei", "nuclei-sample"});
  task.data_source = folder.string();
  SegmentationDataset::Options options;
  options.points = config.sam.points;
  if (options.points.empty()) {
    options.points_per_image = static_cast<int>(config.sam.points_per_image);
    options.prompts_per_image = static_cast<int>(config.sam.prompts_per_image);
  }
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
    const auto logits_BPLL = output.masks.squeeze(2);
    const auto losses_BP = mask_loss(loss, logits_BPLL.flatten(0, 1), batch.target.flatten(0, 1))
                               .view_as(prompts.labels.select(2, 0));
    return train::BatchResult{losses_BP.mean(1), measure(processor, batch, logits_BPLL.detach()),
                              logits_BPLL.detach()};
  };
  task.shown_samples = kShownSamples;
  task.sample_of = sample_of;
  task.draw_samples = [processor](const auto& evaluated, const auto& set) {
    return draw_prediction_rows(rows_of(processor, evaluated),
                                set == "training set" ? "Training" : "Validation");
  };
  task.draw_epoch = [processor](const auto& evaluated) {
    return draw_overlays(rows_of(processor, evaluated));
  };
  task.write_weights = [shape](const std::filesystem::path& folder, const train::StateDict& weights) {
    write_sam(folder, shape, weights);
  };
  task.best_files = {"model.safetensors", "config.json", "preprocessor_config.json"};
  task.model_config = to_json(shape);
  task.line_per_epoch = true;
  return task;
}

/// A new model has everything to learn; one from --checkpoint has much to lose. Leaves settings unset that
/// apply only to new models or to drawn points, so that setting them elsewhere is an error.
void set_sam_defaults(worker::Config& config) {
  const bool is_new = config.sam.checkpoint.empty();
  auto& train = config.train;
  config.sam.architecture = is_new ? "small" : "";
  config.sam.points_per_image = config.sam.points.empty() ? 1 : 0;
  config.sam.prompts_per_image = config.sam.points.empty() ? (is_new ? 8 : 1) : 0;
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

}  // namespace ddprun::sam

namespace ddprun::worker {

TaskEntry sam_task() {
  return {
      .name = "sam",
      .description = "Segment Anything with point prompts",
      .footer =
          "--data takes a folder with images/ and masks/ (each mask pixel has its instance's number). "
          "Without it the task looks for nuclei in $DDPRUN_DATA and the cache folder (scripts/get_data.sh "
          "nuclei fetches it), then uses a sample of 12 images.\n"
          "--checkpoint takes what transformers' SamModel.save_pretrained wrote (defaults: --lr 1e-4, "
          "--warmup-steps 50, --weight-decay 0.01, --lr-schedule none, --epochs 20, --batch-size 4, "
          "--val-split 0.1, --patience 10, no --ema); without it a new model of --architecture is trained. "
          "The "
          "best weights go to the run's folder best/, which SamModel.from_pretrained reads.\n"
          "worker sam --predict IMAGE --point X,Y --checkpoint RUN --mask-out FILE predicts a mask.",
      .leaves_unused = true,  // the encoders of boxes and masks and the score's net
      .set_defaults = sam::set_sam_defaults,
      .make = sam::make_sam,
  };
}

}  // namespace ddprun::worker
