// MNIST CNN: the task of PyTorch's MNIST example under DDP, on MNIST or Fashion-MNIST.

#include <cstdio>
#include <memory>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>

#include "common/errors.h"
#include "worker/data/idx_dataset.h"
#include "worker/data/locate.h"
#include "worker/models/mnist_cnn.h"
#include "worker/tasks/registry.h"
#include "worker/train/state_dict_file.h"

namespace ddprun::tasks {
namespace {

namespace fs = std::filesystem;

// Mean and standard deviation of MNIST's training pixels, which the example uses for every data set.
constexpr float kMean = 0.1307f;
constexpr float kStd = 0.3081f;

fs::path data_folder(const std::string& source) {
  if (source == "mnist" || source == "fashion-mnist") {
    if (const auto folder = data::locate(source)) return *folder;
    throw UsageError("--data: data set '" + source + "' not found in $DDPRUN_DATA/" + source +
                     ", the cache folder's data/" + source + " or /usr/share/datasets/" + source +
                     "; expected it there, or a folder with the IDX files");
  }
  if (!source.empty()) return source;
  for (const char* name : {"mnist", "fashion-mnist"})
    if (const auto folder = data::locate(name)) return *folder;
  throw UsageError(
      "--data: no data set found; expected a folder with MNIST's IDX files, or mnist in $DDPRUN_DATA, "
      "or Fashion-MNIST from the package dataset-fashion-mnist");
}

std::string train_line(const train::TrainProgress& progress) {
  char line[128];
  std::snprintf(
      line, sizeof line, "Train Epoch: %lld [%lld/%lld (%.0f%%)]\tLoss: %.6f",
      static_cast<long long>(progress.epoch + 1), static_cast<long long>(progress.samples_done),
      static_cast<long long>(progress.samples_total),
      100.0 * static_cast<double>(progress.samples_done) / static_cast<double>(progress.samples_total),
      progress.loss);
  return line;
}

train::Task make_mnist(const Config& config) {
  const auto folder = data_folder(config.data.source);
  models::MnistCnn model(config.model.dropout);
  if (!config.model.init_weights.empty())
    train::load_weights(*model, train::read_weights(config.model.init_weights), config.model.init_weights);

  train::Task task;
  task.name = "mnist";
  task.data_source = folder.string();
  task.module = model.ptr();
  task.make_optimizer = [lr = config.train.optim.lr](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(lr));
  };
  task.train_set =
      std::make_unique<data::IdxDataset>(folder, data::Part::kTrain, kMean, kStd, config.data.limit_train);
  task.test_set =
      std::make_unique<data::IdxDataset>(folder, data::Part::kTest, kMean, kStd, config.data.limit_test);
  task.step = [model](const data::Batch& batch) mutable {
    const auto output_BK = model->forward(batch.input);
    return train::StepResult{torch::nll_loss(output_BK, batch.target, {}, torch::Reduction::None),
                             output_BK.argmax(1) == batch.target};
  };
  task.train_line = train_line;
  return task;
}

}  // namespace

TaskEntry mnist_task() {
  TaskEntry entry;
  entry.name = "mnist";
  entry.description = "the MNIST CNN, on MNIST or Fashion-MNIST";
  entry.footer =
      "--data takes a folder with the four IDX files, mnist or fashion-mnist; without it MNIST is used where "
      "it is\n"
      "found ($DDPRUN_DATA/mnist, the cache folder), else Fashion-MNIST.";
  entry.set_defaults = [](Config&) {};
  entry.make = make_mnist;
  return entry;
}

}  // namespace ddprun::tasks
