// The image classifiers: mnist, PyTorch's MNIST example under DDP, on MNIST or Fashion-MNIST; and cifar10,
// ResNet-18 with the defaults of the Lightning walkthrough except for validation, which uses a part of the
// training set.

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/data/dataset_files.h>
#include <ddprun/data/image_dataset.h>
#include <ddprun/train/optim/losses.h>
#include <ddprun/train/state/state_dict_file.h>
#include "worker/models/classifiers.h"
#include "worker/tasks/class_samples.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

/// The files contain no names; the folder's name tells which of the two data sets it is.
bool is_fashion(const std::filesystem::path& folder) {
  return folder.string().find("fashion") != std::string::npos;
}

std::vector<std::string> class_names(const std::filesystem::path& folder) {
  if (is_fashion(folder))
    return {"T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"};
  return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
}

/// "Train Epoch: 1 [1280/60000 (2%)]\tLoss: 1.873212", as printed by PyTorch's example
std::string mnist_line(const train::TrainProgress& progress) {
  return formatted("Train Epoch: %ld [%ld/%ld (%.0f%%)]\tLoss: %.6f", progress.epoch + 1, progress.samples,
                   progress.samples_total, 100 * progress.share, progress.loss);
}

train::Task make_mnist(const Config& config) {
  const auto folder = data::find_data(config.data.source, {"mnist", "fashion-mnist"});
  train::Task task;
  task.data_source = folder.string();
  if (config.data.source.empty() && is_fashion(folder))
    task.data_source += " (Fashion-MNIST: no MNIST found; scripts/get_data.sh mnist fetches it)";
  // Without a split, there is no need to read beyond the limit.
  const auto limit = config.data.val_split > 0 ? 0 : config.data.limit_train;
  const auto read = [&](data::Part part, std::int64_t at_most) {
    return std::make_shared<data::IdxDataset>(folder, part, data::kMnistMean, data::kMnistStd, at_most);
  };
  auto train_set = std::async(std::launch::async, read, data::Part::kTrain, limit);
  auto test_set = std::async(std::launch::async, read, data::Part::kTest, config.data.limit_test);
  auto model = make_model(config, task, [&] { return models::MnistCnn(config.model.dropout); });
  init_weights(*model, config);

  const auto all = train_set.get();
  const auto split = split_for_validation(all, all, config);
  task.train_set = split.train;
  task.validation_set = split.validation;
  task.test_set = test_set.get();
  task.test_every_epoch = true;
  task.measures = {"acc"};
  add_class_samples(task, {{data::kMnistMean}, {data::kMnistStd}}, class_names(folder));
  task.compute_loss = [model](const data::Batch& batch) mutable {
    const auto output_BK = model->forward(batch.input);
    return train::BatchResult{torch::nll_loss(output_BK, batch.target, {}, torch::Reduction::None),
                              {{"acc", output_BK.argmax(1) == batch.target}},
                              output_BK.detach()};
  };
  task.train_line = mnist_line;
  return task;
}

Classifier mnist_classifier(const train::StateDict& weights, const std::filesystem::path& source,
                            const std::string& data) {
  models::MnistCnn model(std::nullopt);
  train::load_weights(*model, weights, source);
  std::filesystem::path folder = data;
  try {
    folder = data::find_data(data, {"mnist", "fashion-mnist"});
  } catch (const UsageError&) {  // not on this machine: the name has to do
  }
  return {.classes = class_names(folder),
          .module = model.ptr(),
          .log_probabilities = [model](const auto& input) mutable { return model->forward(input); },
          .pictures = {{.side = 28, .scale = {{data::kMnistMean}, {data::kMnistStd}}, .dark_ground = true}}};
}

}  // namespace

TaskEntry mnist_task() {
  return {
      .name = "mnist",
      .description = "the MNIST CNN, on MNIST or Fashion-MNIST",
      .footer =
          "--data takes a folder with the four IDX files, mnist or fashion-mnist. The default is MNIST if it "
          "is in $DDPRUN_DATA/mnist or the cache folder, else Fashion-MNIST.\n"
          "worker mnist --predict PICTURE... --checkpoint FILE classifies pictures.",
      .set_defaults = [](Config&) {},
      .make = make_mnist,
      .classifier = mnist_classifier,
  };
}

// -- cifar10 --

namespace {

PixelScale pixel_scale() {
  return {{data::kCifar10Mean.begin(), data::kCifar10Mean.end()},
          {data::kCifar10Std.begin(), data::kCifar10Std.end()}};
}

/// throws  UsageError if the crops are larger than the padded images
std::shared_ptr<const data::Dataset> images(const data::Images& images, const Config& config, bool augment) {
  data::ImageTransform::Options options;
  const auto scale = pixel_scale();
  options.mean = scale.mean;
  options.std = scale.std;
  options.padding = augment ? static_cast<int>(config.data.crop_padding) : 0;
  options.crop = augment ? config.data.crop_size : 0;
  options.flip = augment;
  options.seed = config.train.seed;
  options.channels_last = config.train.precision.channels_last;
  if (const auto most = images.images_NCHW.size(2) + 2 * options.padding; options.crop > most)
    throw UsageError(formatted("--crop-size: expected at most %ld with --crop-padding=%d, got %ld", most,
                               options.padding, options.crop));
  return std::make_shared<data::ImageDataset>(images, data::ImageTransform(std::move(options)));
}

/// The same, augmented.
std::shared_ptr<const data::Dataset> training_images(const data::Images& of, const Config& config) {
  auto whole = images(of, config, config.data.augment);
  const auto sizes = data::parse_image_sizes(config.data.image_sizes);
  if (!sizes) return whole;
  return std::make_shared<data::ProgressiveResizing>(std::move(whole), *sizes, config.train.epochs);
}

void add_data(train::Task& task, const Config& config) {
  const auto folder = data::find_data(config.data.source, {"cifar10"});
  task.data_source = folder.string();
  // Without a split, there is no need to read beyond the limit.
  const bool split = config.data.val_split > 0 && !config.data.val_on_test;
  const auto train = data::read_cifar10(folder, data::Part::kTrain, split ? 0 : config.data.limit_train);
  const auto test_set = images(data::read_cifar10(folder, data::Part::kTest), config, false);
  auto options = config;
  if (!split) options.data.val_split = 0;
  const auto parts =
      split_for_validation(training_images(train, config), images(train, config, false), options);
  task.train_set = parts.train;
  task.validation_set =
      config.data.val_on_test ? first_of(test_set, config.data.limit_val) : parts.validation;
  task.test_set = first_of(test_set, config.data.limit_test);
}

train::Task make_cifar10(const Config& config) {
  train::Task task;
  auto model = make_model(config, task, [&] {
    return models::ResNet18(10,
                            config.model.stem == "cifar" ? models::Stem::kCifar : models::Stem::kImagenet);
  });
  init_weights(*model, config);

  add_data(task, config);
  task.measures = {"acc"};
  add_class_samples(task, pixel_scale(), {data::kCifar10Classes.begin(), data::kCifar10Classes.end()});
  task.compute_loss = [model, smoothing = config.model.label_smoothing,
                       mirror = config.model.test_time_flip](const data::Batch& batch) mutable {
    auto logits_BK = model->forward(batch.input);
    if (mirror && !model->is_training()) logits_BK = (logits_BK + model->forward(batch.input.flip(3))) / 2;
    return train::BatchResult{train::cross_entropy(logits_BK, batch.target, smoothing),
                              {{"acc", logits_BK.argmax(1) == batch.target}},
                              logits_BK.detach()};
  };
  task.train_line = epoch_line;
  return task;
}

/// ResNet-18 at 94 % of the test images in the cost of ten epochs: most of its 28 epochs see small images.
void set_recipe_94(Config& config) {
  auto& train = config.train;
  constexpr std::int64_t kBatch = 256;  // of all ranks
  train.batch_size = std::max<std::int64_t>(1, kBatch / from_env().world_size);
  train.epochs = 28;
  train.drop_last = true;
  config.data.val_split = 0;
  config.data.crop_padding = 0;
  config.data.crop_size = 28;
  config.data.image_sizes = "14:0.5,21:0.35,28:0.15";  // 28 of an image's 32 pixels: as large as in the test
  config.model.stem = "cifar";
  config.model.label_smoothing = 0.1;
  config.model.test_time_flip = true;
  config.fast = true;
  train.optim.optimizer = {
      .kind = train::OptimizerKind::kSgd, .lr = 0.2, .weight_decay = 1e-3, .momentum = 0.9, .nesterov = true};
  train.optim.scale_lr = false;
  train.optim.schedule = train::LrScheduleKind::kOneCycle;
  train.optim.pct_start = 0.25;
  train.optim.linear = true;
  train.optim.cycle_momentum = false;
  train.optim.clip_norm = 0;
  train.precision.precision = train::Precision::kBf16Mixed;
  train.checkpoint.top_k = 0;
  train.checkpoint.patience = 0;
  train.parallel.static_graph = false;  // which a CUDA graph of several ranks cannot have
}

void set_documents_defaults(Config& config) {
  auto& train = config.train;
  train.epochs = 50;
  train.loader_threads = 2;
  config.data.val_split = 0.1;
  train.optim.optimizer = {
      .kind = train::OptimizerKind::kSgd, .lr = 0.1, .weight_decay = 5e-4, .momentum = 0.9};
  train.optim.scale_lr = true;
  train.optim.schedule = train::LrScheduleKind::kCosine;
  train.optim.t_max = 200;
  train.optim.clip_norm = 1.0;
  train.precision.precision = train::Precision::k16Mixed;
  train.parallel.static_graph = true;  // as in the walkthrough
  train.checkpoint.filename = "ddp-cifar10-{epoch:02d}-{val_acc:.2f}";
  train.checkpoint.extension = ".ckpt";
  train.checkpoint.prefix = "backbone.";
  train.checkpoint.top_k = 3;
  train.checkpoint.monitor = "val_acc";
  train.checkpoint.patience = 10;
  train.checkpoint.min_delta = 0.001;
  if (config.recipe == "94") set_recipe_94(config);
}

Classifier cifar10_classifier(const train::StateDict& weights, const std::filesystem::path& source,
                              const std::string& /*data*/) {
  // Only the stem of the large pictures has a kernel of 7 x 7.
  const bool large = std::ranges::any_of(
      weights, [](const auto& item) { return item.second.dim() == 4 && item.second.size(3) == 7; });
  models::ResNet18 model(10, large ? models::Stem::kImagenet : models::Stem::kCifar);
  train::load_weights(*model, weights, source);
  return {.classes = {data::kCifar10Classes.begin(), data::kCifar10Classes.end()},
          .module = model.ptr(),
          .log_probabilities =
              [model](const auto& input) mutable { return model->forward(input).log_softmax(1); },
          .pictures = {{.side = 32, .scale = pixel_scale()}}};
}

}  // namespace

TaskEntry cifar10_task() {
  return {
      .name = "cifar10",
      .description = "ResNet-18 on CIFAR-10",
      .footer =
          "--data takes the folder of CIFAR-10's binary version, or cifar10. Without it the task looks in "
          "$DDPRUN_DATA and the cache folder (scripts/get_data.sh cifar10 fetches it).\n"
          "The default --t-max 200 is the walkthrough's: in its 50 epochs the cosine schedule stays above "
          "0.85 of the initial learning rate; --t-max epochs lets it fall to 0.\n"
          "worker cifar10 --predict PICTURE... --checkpoint FILE classifies pictures.",
      .set_defaults = set_documents_defaults,
      .make = make_cifar10,
      .classifier = cifar10_classifier,
  };
}

}  // namespace ddprun::worker
