// Measures what the status channel and the metrics (CSV, JSON lines, TensorBoard, use of resources, every
// tenth step) cost a step that sleeps for 5 ms: trainings with and without them, in turns, in one process for
// each rank. Times of this process's CPU, and of ddprun's, which a noisy machine changes least.
//
//   ddprun --nproc-per-node=2 build/bench/status_cost
#include <ddprun/runtime.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/train/record/rank_resources.h>

using namespace ddprun;

namespace {

constexpr std::int64_t kSteps = 200;
constexpr int kPairs = 41;

double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/// In microseconds: wall clock, CPU of this process, CPU of ddprun.
struct Times {
  double wall = now(CLOCK_MONOTONIC), own = now(CLOCK_PROCESS_CPUTIME_ID), parent = 0;
  Times() {
    std::ifstream file("/proc/" + std::to_string(::getppid()) + "/schedstat");
    file >> parent;
    parent /= 1e3;
  }
};

class Numbers : public data::Dataset {
 public:
  std::int64_t size() const override { return 2 * kSteps; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto x = torch::tensor(indices).to(torch::kFloat).unsqueeze(1);
    return {.input = x, .target = x};
  }
};

/// A step's times in a training, without its first steps.
Times train_once(bool told, const std::filesystem::path& out, Context& ctx) {
  std::int64_t step = 0;
  Times begin, end;
  torch::nn::Linear net(1, 1);
  train::Task task;
  task.name = "work";
  task.module = net.ptr();
  task.train_set = std::make_shared<Numbers>();
  task.compute_loss = [&, net](const data::Batch& batch) mutable {
    if (step++ == kSteps / 10) begin = Times();
    if (step == kSteps) end = Times();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the CPU's time is what the loop costs
    return train::BatchResult{.losses = (net->forward(batch.input) * 0).squeeze(1)};
  };
  train::TrainerOptions options;
  options.out = out;
  options.epochs = 1;
  options.batch_size = 1;
  options.report = options.progress = false;
  options.tensorboard = told;
  options.log_interval = told ? 10 : 10 * kSteps;
  if (told) {
    options.status = StatusChannel(from_env().status_fd);
    options.heartbeat = Heartbeat(from_env().heartbeat_fd);
  }
  train::fit(task, options, ctx.group());
  const double steps = kSteps - kSteps / 10 - 1;
  Times each = end;
  each.wall = (end.wall - begin.wall) / steps;
  each.own = (end.own - begin.own) / steps;
  each.parent = (end.parent - begin.parent) / steps;
  return each;
}

void print(const char* what, std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  std::fprintf(stderr, "%-46s %9.1f us (%.1f-%.1f)\n", what, at(0.5), at(0.25), at(0.75));
}

/// Only the calls: a row every tenth step, a line every twentieth, a sample every 200th.
void measure_calls(const std::filesystem::path& folder) {
  constexpr int kCalls = 2000;
  const auto each = [](const char* what, const auto& call) {
    std::vector<double> times;
    for (int i = 0; i < kCalls; ++i) {
      const double begin = now(CLOCK_PROCESS_CPUTIME_ID);
      call();
      times.push_back(now(CLOCK_PROCESS_CPUTIME_ID) - begin);
    }
    print(what, times);
  };
  report::MetricRow row;
  std::vector<std::string> columns;
  for (int i = 0; i < 16; ++i)
    row.emplace_back(columns.emplace_back("rss_mb_rank" + std::to_string(i)), 1234.5678);
  report::CsvSink csv(folder / "metrics.csv", columns);
  report::JsonlSink jsonl(folder / "metrics.jsonl");
  report::TensorBoardSink events(folder);
  const StatusChannel status(from_env().status_fd);
  train::ResourceUsage usage;
  each("a row of 16 figures in three files", [&] { csv.add(row), jsonl.add(row), events.add(row); });
  each("a line of status", [&] {
    status.send({.step = 1,
                 .phase = "train",
                 .loss = 0.5,
                 .seconds = {.data = 1.5, .start = train::process_seconds()}});
  });
  each("a sample of the process's resources", [&] { usage.sample(); });
}

}  // namespace

int main() {
  return run([](Context& ctx) {
    torch::set_num_threads(1);
    const TempDir folder;
    std::vector<double> steps, wall, own, parent;
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto without = train_once(false, folder.path() / "run", ctx);
      const auto with = train_once(true, folder.path() / "run", ctx);
      steps.push_back(without.wall);
      wall.push_back(with.wall - without.wall);
      own.push_back(with.own - without.own);
      parent.push_back(with.parent - without.parent);
    }
    if (ctx.group().rank() != 0) return;
    measure_calls(folder.path());
    print("a step, wall clock", steps);
    print("told, more of the wall clock", wall);
    print("told, more CPU of rank 0", own);
    print("told, more CPU of ddprun, for all ranks", parent);
  });
}
