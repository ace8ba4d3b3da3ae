// MNIST CNN: the task of PyTorch's MNIST example under DDP, on MNIST or Fashion-MNIST.

#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>

#include <torch/nn/functional/loss.h>

#include <ddprun/data/find_dataset.h>
#include <ddprun/data/idx_dataset.h>
#include "worker/models/mnist_cnn.h"
#include "worker/tasks/class_samples.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

/// The files contain no names; the folder's name tells which of the two data sets it is.
std::vector<std::string> class_names(const std::filesystem::path& folder) {
  if (folder.string().find("fashion") != std::string::npos)
    return {"T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"};
  return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
}

/// "Train Epoch: 1 [1280/60000 (2%)]\tLoss: 1.873212", as printed by PyTorch's example
std::string mnist_line(const train::TrainProgress& progress) {
  char line[128];
  std::snprintf(line, sizeof line, "Train Epoch: %lld [%lld/%lld (%.0f%%)]\tLoss: %.6f",
                static_cast<long long>(progress.epoch + 1), static_cast<long long>(progress.samples),
                static_cast<long long>(progress.samples_total), 100 * progress.share, progress.loss);
  return line;
}

train::Task make_mnist(const Config& config) {
  const auto folder = data::find_data(config.data.source, {"mnist", "fashion-mnist"});
  train::Task task;
  task.data_source = folder.string();
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

}  // namespace

TaskEntry mnist_task() {
  return {
      .name = "mnist",
      .description = "the MNIST CNN, on MNIST or Fashion-MNIST",
      .footer =
          R"(--data takes a folder with the four IDX files, mnist or fashion-mnist. The default is MNIST if it is in
$DDPRUN_DATA/mnist or the cache folder, else Fashion-MNIST.)",
      .set_defaults = [](Config&) {},
      .make = make_mnist,
  };
}

}  // namespace ddprun::worker
