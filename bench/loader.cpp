// Only the input pipeline of a task, without a model: goes through the training set in random order, once or
// more. bench/loader.py runs it next to a DataLoader.
//
// usage: loader TASK [flags], see --help; TASK: cifar10 or mnist
//
// Prints one line of JSON: task, world, seconds and cpu_seconds of this process, peak_mb, workers (loader
// threads) and images_per_second, after the first batch.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/dataset_files.h>
#include <ddprun/data/loader.h>

using namespace ddprun;
using namespace ddprun::worker;

namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string task = "cifar10";
  std::string source;
  std::int64_t batch_size = 128, epochs = 1, seed = 0;
  int threads = 2;
  bool augment = true, channels_last = false;
};

/// nullopt if only help was requested.
std::optional<BenchOptions> parse_bench_flags(int argc, char** argv) {
  using namespace settings;
  BenchOptions options;
  Command command;
  command.name = "loader";
  command.description = "measures the input pipeline of a task alone and prints one line of JSON.";
  command.positionals = {{"task", "TASK"}};
  command.settings = {
      help_flag(),
      text("task", options.task, "cifar10 or mnist").not_a_flag(),
      text("data", options.source, "a folder, or the name of a data set: cifar10, mnist, fashion-mnist"),
      integer("loader-threads", options.threads, 0, 256,
              "threads that prepare batches; 0: the main thread does"),
      integer("batch-size", options.batch_size, 1, kMaxInt, "images a batch"),
      integer("epochs", options.epochs, 1, kMaxInt, "how often to go through the images"),
      integer("seed", options.seed, 0, INT64_MAX, "of the order and the augmentation"),
      negated("augment", options.augment, "only normalise"),
      boolean("channels-last", options.channels_last, "batches in channels-last memory format"),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return std::nullopt;
  return options;
}

data::ImageDataset open_images(const BenchOptions& options) {
  data::ImageTransform::Options transform;
  transform.seed = static_cast<std::uint64_t>(options.seed);
  transform.channels_last = options.channels_last;
  if (options.task == "cifar10") {
    transform.mean = {data::kCifar10Mean.begin(), data::kCifar10Mean.end()};
    transform.std = {data::kCifar10Std.begin(), data::kCifar10Std.end()};
    transform.padding = options.augment ? 4 : 0;
    transform.flip = options.augment;
    return {data::read_cifar10(data::find_data(options.source, {"cifar10"}), data::Part::kTrain),
            data::ImageTransform(std::move(transform))};
  }
  if (options.task != "mnist")
    throw UsageError("unknown task '" + options.task + "', expected cifar10 or mnist");
  transform.mean = {data::kMnistMean};
  transform.std = {data::kMnistStd};
  return {data::read_mnist(data::find_data(options.source, {"mnist", "fashion-mnist"}), data::Part::kTrain),
          data::ImageTransform(std::move(transform))};
}

/// Images per second, not counting the first batch, which waits for everyone to start.
double measure(const data::ImageDataset& images, const BenchOptions& options) {
  data::DistributedSampler sampler(images.size(), 1, 0, {.seed = static_cast<std::uint64_t>(options.seed)});
  data::Loader loader(images, {.batch_size = options.batch_size, .threads = options.threads});
  std::optional<Clock::time_point> begin;
  std::int64_t count = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    loader.start_epoch(sampler.indices(), epoch);
    while (const auto batch = loader.next()) {
      if (begin)
        count += batch->size();
      else
        begin = Clock::now();
    }
  }
  return static_cast<double>(count) / std::chrono::duration<double>(Clock::now() - *begin).count();
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double rounded(double seconds) { return std::round(seconds * 1000) / 1000; }

}  // namespace

int main(int argc, char** argv) try {
  const auto started = Clock::now();
  const auto flags = parse_bench_flags(argc, argv);
  if (!flags) return 0;
  const auto& options = *flags;
  const auto rate = measure(open_images(options), options);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const nlohmann::ordered_json line = {
      {"task", options.task + "-loader"},
      {"world", from_env().world_size},
      {"seconds", rounded(std::chrono::duration<double>(Clock::now() - started).count())},
      {"cpu_seconds", rounded(seconds(usage.ru_utime) + seconds(usage.ru_stime))},
      {"peak_mb", usage.ru_maxrss / 1024},
      {"workers", options.threads},
      {"images_per_second", std::llround(rate)}};
  std::cout << line.dump() << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return 1;
}
