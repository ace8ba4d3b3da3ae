// What a training leaves on the disk, and how it goes on from there.
#include <fcntl.h>
#include <sys/file.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/support/small_disk.h"

using namespace ddprun;
using namespace ddprun::train;
using ddprun::ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;
using ddprun::test::fill_disk;
using ddprun::test::on_a_small_disk;
using ddprun::test::run_ranks;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kExamples = 8, kBatch = 2, kSteps = kExamples / kBatch;  // of an epoch

/// Example i is the number i.
class Numbered : public data::Dataset {
 public:
  explicit Numbered(std::int64_t size, std::function<void()> at_batch = {})
      : size_(size), at_batch_(std::move(at_batch)) {}
  std::int64_t size() const override { return size_; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    if (at_batch_) at_batch_();
    const auto i = torch::tensor(indices, torch::kInt64);
    return {i.to(torch::kFloat32).view({-1, 1}), i};
  }

 private:
  std::int64_t size_;
  std::function<void()> at_batch_;
};

using AtStep = std::function<void(std::int64_t step)>;

/// Calls at_step before each step of the training, from 0. Its val_acc is 0.1 after the first epoch, 0.2
/// after the second, and so on.
Task make_task(const AtStep& at_step = {}) {
  torch::manual_seed(5);
  torch::nn::Linear model(1, 1);
  Task task;
  task.name = "numbered";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = task.validation_set = task.test_set = std::make_shared<Numbered>(kExamples);
  task.eval_batch_size = 4;
  task.measures = {"acc"};
  task.compute_loss = [model, at_step, step = std::int64_t{0}](const data::Batch& batch) mutable {
    if (model->is_training()) {
      if (at_step) at_step(step);
      ++step;
    }
    const auto losses = (model->forward(batch.input) / 10).square().squeeze(1);
    const auto epochs = static_cast<double>((step + kSteps - 1) / kSteps);
    return BatchResult{losses, {{"acc", torch::full_like(losses, 0.1 * epochs)}}};
  };
  return task;
}

/// The same task, whose losses and val_acc are larger by this.
Task raised(Task task, double losses, double acc) {
  task.compute_loss = [compute_loss = task.compute_loss, losses, acc](const data::Batch& batch) {
    const auto result = compute_loss(batch);
    return BatchResult{result.losses + losses, {{"acc", result.measures.at(0).second + acc}}};
  };
  return task;
}

TrainerOptions options_in(const fs::path& out, std::int64_t epochs) {
  fs::create_directories(out);
  TrainerOptions options;
  options.epochs = epochs;
  options.batch_size = kBatch;
  options.progress = options.tensorboard = options.report = false;
  options.out = out;
  options.checkpoint.monitor = "val_acc";
  options.checkpoint.top_k = 1;
  options.checkpoint.filename = "{epoch}";
  return options;
}

void run(Task task, const TrainerOptions& options, int ranks = 1) {
  run_ranks(ranks, [&](const ProcessGroup& group) {
    ::signal(SIGTERM, SIG_DFL);  // and not Catch2's handler
    fit(task, options, group);
  });
}

std::set<std::string> checkpoints_in(const fs::path& out) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    names.insert(entry.path().filename().string());
  return names;
}

void wait_for(const fs::path& file) {
  while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("one of the best checkpoints that had no place on the disk counts as if it had never been",
          "[fit]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=1m", [](const fs::path& disk) {
    for (const std::int64_t epochs : {2, 3}) {
      auto options = options_in(disk / std::to_string(epochs), epochs);
      const auto folder = options.out / "checkpoints";
      // In the third epoch the first step's save waits for what became of the second epoch's.
      options.checkpoint.every_steps = 2 * kSteps + 1;
      const auto at_step = [&](std::int64_t step) {
        if (step == kSteps) {
          wait_for(folder / "epoch=0.pt");
          fill_disk(disk / "filler");
        }
        if (step == 2 * kSteps + 1) fs::remove(disk / "filler");
      };
      bool failed = false;
      try {
        run(make_task(at_step), options);  // with a test of the best one at its end
      } catch (const std::exception&) {
        failed = true;
      }
      ensure(failed == (epochs == 2), "a run fails if its last checkpoint has no place");
      fs::remove(disk / "filler");
      const auto kept = checkpoints_in(options.out);
      ensure(epochs != 2 || kept.contains("epoch=0.pt"), "the best that is there stays");
      ensure(epochs != 3 || (kept == std::set<std::string>{"epoch=2.pt", "last.pt"}), "and makes way later");
    }
  });
}

TEST_CASE("a run whose last checkpoint did not fit on the disk fails at its end, and names it", "[fit]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=1m", [](const fs::path& disk) {
    for (const int ranks : {1, 2})
      for (const bool sharded : {false, true}) {
        if (sharded && ranks == 1) continue;
        auto options = options_in(disk / (std::to_string(ranks) + (sharded ? "s" : "")), 3);
        options.parallel.fsdp = sharded;
        options.checkpoint.top_k = 0;
        const auto at_step = [&](std::int64_t step) {
          if (step != kSteps / ranks || fs::exists(disk / "filler")) return;
          wait_for(options.out / "checkpoints/last.pt");
          fill_disk(disk / "filler");
        };
        std::string error;
        try {
          run(make_task(at_step), options, ranks);
        } catch (const std::exception& thrown) {
          error = thrown.what();
        }
        fs::remove(disk / "filler");
        ensure(error.find("last.pt: the run's last checkpoint was not written; the existing one is older: "
                          "No space left") != std::string::npos,
               ("it fails: " + error).c_str());
        ensure(read_checkpoint(options.out / "checkpoints/last.pt").step == kSteps / ranks,
               "the one before is there");
        const auto list = read_file(options.out / "run.json");
        for (const auto& name : checkpoints_in(options.out))
          ensure(!name.ends_with(".shards") || (sharded && list.find(name) != std::string::npos),
                 "no folder is made that is not listed");
      }
  });
}

TEST_CASE("a training in the folder of another is refused, unless it is to set that aside", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  run(make_task(), options);
  const auto last = read_file(options.out / "checkpoints/last.pt");
  CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("already holds a run (metrics.csv)"));
  CHECK(read_file(options.out / "checkpoints/last.pt") == last);
  options.overwrite = true;
  run(make_task(), options);
  CHECK(checkpoints_in(options.out).contains("last.pt"));
}

TEST_CASE("a folder that another process trains in, or whose checkpoints are there, is refused", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  options.checkpoint.resume = "auto";
  run(make_task(), options);
  run(make_task(), options);  // the first training has left it
  for (const auto& folder : {options.out, options.out / "checkpoints"}) {
    const UniqueFd other(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(::flock(other.get(), LOCK_EX | LOCK_NB) == 0);
    options.epochs += 1;
    CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("another run is using"));
  }
  run(make_task(), options);
}

TEST_CASE("the checkpoints of a run that has set another aside are locked as well", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  run(make_task(), options);
  options.overwrite = true;
  const auto at_step = [&](std::int64_t) {
    const UniqueFd other(::open((options.out / "checkpoints").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (::flock(other.get(), LOCK_EX | LOCK_NB) == 0) throw std::runtime_error("nobody has locked it");
  };
  run(make_task(at_step), options);
}

TEST_CASE("a step at which to save is saved although it is its epoch's last", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 3);
  options.checkpoint.save_every = 100;
  options.checkpoint.every_steps = kSteps;
  const auto at_step = [](std::int64_t step) {
    if (step == kSteps + 1) throw std::runtime_error("lost");
  };
  CHECK_THROWS(run(make_task(at_step), options));
  CHECK(read_checkpoint(options.out / "checkpoints/last.pt").step == kSteps);
}

TEST_CASE("a program does not train twice at once in one folder", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  const auto twice = [&] {
    run_ranks(1, [&](const ProcessGroup& group) {
      fit(make_task([&](std::int64_t) { fit(make_task(), options, group); }), options, group);
    });
  };
  CHECK_THROWS_WITH(twice(), ContainsSubstring("this program is already training in"));
  options.overwrite = true;  // what the first has left
  run(make_task(), options);
}

TEST_CASE("a branch that was killed before its first checkpoint leaves the run as it was", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 2);
  run(make_task(), options);
  const auto metrics = options.out / "metrics.csv";
  const auto rows = read_file(metrics);
  {
    RunFolder killed(options.out);
    killed.resume(killed.identity(), /*is_newest=*/false, {"metrics.csv"});
    killed.claim(metrics);
    write_file_atomic(metrics, "the killed branch's\n");
  }
  REQUIRE(RunFolder(options.out).identity().branch == 2);
  options.checkpoint.resume = "auto";
  run(make_task([](std::int64_t) { throw std::runtime_error("there is nothing left to train"); }), options);
  const auto training = rows.substr(0, rows.rfind('\n', rows.size() - 2));  // its end is tested again
  CHECK(read_file(metrics).starts_with(training));
  CHECK(RunFolder(options.out).identity().branch == 3);
}

TEST_CASE("a checkpoint's name has no folder", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  options.checkpoint.filename = "best/{epoch}";
  CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("a name without '/'"));
}

TEST_CASE("checkpoints and weights have names by which a run knows them again", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  auto task = make_task();
  task.weights_file = "model.pth";
  CHECK_THROWS_WITH(run(task, options), ContainsSubstring("ends in .pt or .ckpt, got 'model.pth'"));
  options.checkpoint.extension = ".pth";
  CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("expected .pt or .ckpt, got '.pth'"));
}

TEST_CASE("a checkpoint is chosen when no other process writes any more", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path() / "run", 1);
  run(make_task(), options);
  options.checkpoint.resume = "auto";
  options.on_resume = [](TrainerOptions&, const std::string&) { FAIL("chosen while another run may save"); };
  const UniqueFd other(::open(options.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(other.get(), LOCK_EX | LOCK_NB) == 0);
  CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("another run is using"));
}

TEST_CASE("separate weights that do not fit on the disk do not end the run", "[fit]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=1m", [](const fs::path& disk) {
    auto options = options_in(disk / "run", 3);
    options.checkpoint.top_k = 0;
    auto task = make_task([&](std::int64_t step) {
      if (step == 2 * kSteps + 1) fs::remove(disk / "filler");
      if (step != kSteps) return;
      wait_for(options.out / "checkpoints/last.pt");
      fill_disk(disk / "filler");
    });
    task.weights_file = "weights.pt";
    task.weights_line = [](std::int64_t epoch, const auto&) {
      return "weights of epoch " + std::to_string(epoch);
    };
    run(task, options);
    ensure(read_weights(options.out / "weights.pt").size() == 2, "the earlier ones are there");
  });
}

TEST_CASE("where the best checkpoint is gone the newest weights are tested", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 1);
  run(make_task(), options);
  const auto summary = [&] { return nlohmann::json::parse(read_file(dir.path() / "summary.json")); };
  REQUIRE(summary()["best_checkpoint"] == (dir.path() / "checkpoints/epoch=0.pt").string());
  fs::remove(dir.path() / "checkpoints/epoch=0.pt");
  fs::remove(dir.path() / "summary.json");  // else the run has ended
  options.checkpoint.resume = (dir.path() / "checkpoints/last.pt").string();
  run(make_task(), options);
  CHECK_FALSE(summary().contains("best_checkpoint"));
  CHECK(summary().contains("test_loss"));
}

TEST_CASE("a branch does not take what the earlier one wrote later for its best checkpoint", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 1);
  options.checkpoint.filename = "best";  // the same name again and again
  run(make_task(), options);
  const auto folder = dir.path() / "checkpoints", middle = dir.path() / "middle.pt";
  fs::copy_file(folder / "last.pt", middle);
  options.checkpoint.resume = "auto";
  options.epochs = 3;
  run(make_task(), options);
  REQUIRE(read_checkpoint(folder / "best.pt").step == 3 * kSteps);
  options.checkpoint.resume = middle.string();
  options.epochs = 2;
  run(make_task(), options);
  const auto summary = nlohmann::json::parse(read_file(dir.path() / "summary.json"));
  const auto best = read_checkpoint(summary["best_checkpoint"].get<std::string>());
  CHECK(best.identity.branch == 2);
  CHECK(best.step == 2 * kSteps);
  CHECK(read_checkpoint(folder / "best.pt").step == 3 * kSteps);  // which stays
}

TEST_CASE("what a run leaves for other programs is written before its summary, and again if it was killed",
          "[fit]") {
  const TempDir dir;
  const auto best = dir.path() / "best", summary = dir.path() / "summary.json",
             left = best / ".weights.tmp.12";
  auto options = options_in(dir.path(), 1);
  auto task = make_task();
  task.best_files = {"weights"};
  task.write_weights = [&](const fs::path& folder, const StateDict& weights) {
    fs::create_directories(folder);
    std::ofstream(folder / "weights") << weights.size() << fs::exists(summary);
  };
  run(task, options);
  CHECK(read_file(best / "weights") == "20");
  fs::remove(best / "weights");
  fs::remove(summary);
  std::ofstream(left) << "cut";
  options.checkpoint.resume = "auto";
  run(task, options);
  CHECK(read_file(best / "weights") == "20");
  CHECK_FALSE(fs::exists(left));
}

TEST_CASE("the time limit is kept however often there are checkpoints", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 300);
  options.checkpoint.top_k = 0;
  options.max_seconds = 0.5;
  run(make_task(), options, 2);
  CHECK(nlohmann::json::parse(read_file(dir.path() / "summary.json")).value("stopped", "") ==
        "the time is up");
}

TEST_CASE("the time limit of a resumed run includes the time that its parts before have taken", "[fit]") {
  constexpr std::chrono::milliseconds kLimit{1500}, kFirstStep{1200}, kStep{10};
  const TempDir dir;
  auto options = options_in(dir.path(), 1000);
  options.checkpoint.top_k = 0;
  options.max_seconds = kLimit.count() / 1e3;
  options.checkpoint.every_steps = 1;
  const auto killed = [&](std::int64_t step) {
    if (step == 1) throw std::runtime_error("killed");
    std::this_thread::sleep_for(kFirstStep);
  };
  CHECK_THROWS_WITH(run(make_task(killed), options), ContainsSubstring("killed"));
  REQUIRE(read_checkpoint(options.out / "checkpoints/last.pt").step == 1);

  const auto summary = [&] { return nlohmann::json::parse(read_file(options.out / "summary.json")); };
  options.checkpoint.resume = "auto";
  options.max_seconds = 1;
  run(make_task([](std::int64_t) { throw std::runtime_error("no time is left"); }), options);
  CHECK(summary()["stopped"] == kTimeIsUp);

  options.max_seconds = kLimit.count() / 1e3;
  run(make_task([&](std::int64_t) { std::this_thread::sleep_for(kStep); }), options);
  CHECK(summary()["stopped"] == kTimeIsUp);
  CHECK(summary()["seconds"] >= options.max_seconds);
  CHECK(summary()["steps"] <= 1 + (kLimit - kFirstStep) / kStep + 1);  // with the whole limit five times that
}

TEST_CASE("SIGTERM after the last step ends the process, with its checkpoint on the disk", "[fit]") {
  const TempDir dir;
  auto task = make_task();
  task.test_set = std::make_shared<Numbered>(kExamples, [] { ::kill(::getpid(), SIGTERM); });
  auto options = options_in(dir.path(), 1);
  options.sanity_batches = 0;
  CHECK_THROWS_WITH(run(task, options), ContainsSubstring("SIGTERM"));
  CHECK_FALSE(fs::exists(dir.path() / "summary.json"));
  CHECK(read_checkpoint(dir.path() / "checkpoints/last.pt").position.epoch == 1);
}

TEST_CASE("a resumed epoch tells every rank's mean loss of the whole epoch", "[fit]") {
  const TempDir dir;
  auto task = make_task();
  const auto losses = [&](const char* name, std::initializer_list<std::int64_t> steps) {
    auto options = options_in(dir.path() / name, 1);
    options.checkpoint.resume = "auto";
    task.epoch_end_line = [out = options.out](const RankEpoch& epoch) {
      write_file_atomic(out / ("loss." + std::to_string(epoch.rank)), std::to_string(epoch.loss));
      return std::string("an epoch");
    };
    for (const auto max_steps : steps) {
      options.max_steps = max_steps;
      run(task, options, 2);
    }
    return std::pair(read_file(options.out / "loss.0"), read_file(options.out / "loss.1"));
  };
  CHECK(losses("parts", {1, 2}) == losses("whole", {2}));
}

TEST_CASE("ranks without a disk in common resume from rank 0's checkpoint", "[fit]") {
  for (const bool zero1 : {false, true}) {
    const TempDir dir;
    auto options = options_in(dir.path() / "host0/run", 1);
    options.optim.optimizer.kind = OptimizerKind::kAdam;
    options.parallel.zero1 = zero1;
    run(make_task(), options, 2);
    fs::create_directories(dir.path() / "host1");
    fs::create_directories(dir.path() / "whole");
    const auto continued = [&](const fs::path& out, const auto& before) {
      auto more = options;
      more.out = out;
      fs::create_directories(out);
      more.epochs = 2;
      more.checkpoint.top_k = 0;
      run_ranks(2, [&](const ProcessGroup& group) {
        before(group.rank(), more);
        fit(make_task(), more, group);
      });
      return read_weights(out / "checkpoints/last.pt");
    };
    const auto apart = continued(dir.path() / "host0/more", [&](int rank, TrainerOptions& more) {
      fs::current_path(dir.path() / ("host" + std::to_string(rank)));
      more.checkpoint.resume = "run/checkpoints/last.pt";
    });
    const auto whole = continued(dir.path() / "whole", [&](int, TrainerOptions& more) {
      more.checkpoint.resume = options.out / "checkpoints/last.pt";
    });
    REQUIRE(apart.size() == 2);
    for (std::size_t i = 0; i < apart.size(); ++i) CHECK(apart[i].second.equal(whole[i].second));
  }
}

TEST_CASE("a run may end without a checkpoint if none is asked for", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 1);
  options.checkpoint.top_k = 0;
  options.checkpoint.save_last = false;
  run(make_task(), options);
  CHECK(fs::exists(options.out / "summary.json"));
  CHECK_FALSE(fs::exists(options.out / "checkpoints/last.pt"));
}

TEST_CASE("without a last checkpoint the summary names the best one", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 1);
  options.checkpoint.save_last = false;
  run(make_task(), options);
  const auto summary = nlohmann::json::parse(read_file(options.out / "summary.json"));
  CHECK(fs::path(summary["checkpoint"].get<std::string>()).filename() == "epoch=0.pt");
}

TEST_CASE("separate weights are the averages if there are any", "[fit]") {
  const TempDir dir;
  const int ranks = GENERATE(1, 2);
  auto options = options_in(dir.path(), 1);
  options.optim.ema = 0.5;
  options.optim.optimizer.lr = 0.1;
  auto task = make_task();
  task.weights_file = "weights.pt";
  task.weights_line = [](std::int64_t, const auto&) { return std::string("weights"); };
  run(task, options, ranks);
  const auto averages = read_weights(options.out / "checkpoints/last.pt", WeightsOf::kAverages);
  const auto weights = read_weights(options.out / "weights.pt"),
             raw = read_weights(options.out / "checkpoints/last.pt");
  REQUIRE(weights.size() == averages.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    CHECK(weights[i].second.equal(averages[i].second));
    CHECK_FALSE(weights[i].second.equal(raw[i].second));
  }
}

TEST_CASE("a resumed run that goes by another metric keeps no scores of the one before", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 2);
  options.checkpoint.patience = 5;
  options.optim.schedule = LrScheduleKind::kPlateau;
  run(make_task(), options);
  options.checkpoint.resume = "auto";
  options.epochs = 3;
  options.checkpoint.mode = "min";
  options.checkpoint.patience = 1;
  run(raised(make_task(), 0, 1), options);  // with a val_acc that is higher than before
  const auto summary = nlohmann::json::parse(read_file(options.out / "summary.json"));
  CHECK(fs::path(summary["best_checkpoint"].get<std::string>()).filename() == "epoch=2.pt");
  CHECK_FALSE(summary.contains("stopped"));
  CHECK(checkpoints_in(options.out).contains("epoch=1.pt"));
  const auto plateau = read_checkpoint(options.out / "checkpoints/last.pt").lr_schedule.toGenericDict();
  CHECK(plateau.at("monitor").toStringRef() == "val_acc");
  CHECK(plateau.at("num_bad_epochs").toInt() == 0);
}

TEST_CASE("a resumed run with another --monitor judges by that metric alone", "[fit]") {
  // No value of the second metric is better than the best one of the first: losses are above 5, and acc is at
  // most 0.3.
  const auto [before, after, mode] = GENERATE(table<std::string, std::string, std::string>(
      {{"val_acc", "val_loss", "min"}, {"val_loss", "val_acc", "max"}, {"val_acc", "val_loss", ""}}));
  CAPTURE(before, after, mode);
  const TempDir dir;
  const auto task = raised(make_task(), 5, 0);
  auto options = options_in(dir.path(), mode.empty() ? 2 : 3);
  options.checkpoint.monitor = before;
  options.checkpoint.mode = mode;
  options.checkpoint.patience = 1;
  options.optim.schedule = LrScheduleKind::kPlateau;
  run(task, options);
  const auto summary = [&] { return nlohmann::json::parse(read_file(options.out / "summary.json")); };
  const auto best = [&] { return fs::path(summary()["best_checkpoint"].get<std::string>()).filename(); };
  const auto earlier_best = best();
  REQUIRE(summary()["epochs"] == 2);
  REQUIRE(summary().contains("stopped") == !mode.empty());  // by the first metric, which the second run lifts

  options.checkpoint.resume = "auto";
  options.checkpoint.monitor = after;
  options.epochs = 3;
  run(task, options);
  CHECK(summary()["epochs"] == 3);
  CHECK_FALSE(summary().contains("stopped"));
  CHECK(best() == "epoch=2.pt");
  CHECK(checkpoints_in(options.out).contains(earlier_best));  // the second metric has no reason to replace it
  const auto last = read_checkpoint(options.out / "checkpoints/last.pt");
  const auto plateau = last.lr_schedule.toGenericDict();
  CHECK(plateau.at("monitor").toStringRef() == after);
  CHECK(plateau.at("num_bad_epochs").toInt() == 0);
  for (const auto& [name, state] : last.callbacks) {
    CAPTURE(name);
    if (!name.starts_with("EarlyStopping") && !name.starts_with("ModelCheckpoint")) continue;
    CHECK(name.find("{'monitor': '" + after + "'") != std::string::npos);
  }
}

TEST_CASE("a checkpoint that a newer version wrote is no reason to start from scratch", "[fit]") {
  const TempDir dir;
  auto options = options_in(dir.path(), 1);
  options.checkpoint.top_k = 0;
  run(make_task(), options);
  const auto last = options.out / "checkpoints/last.pt";
  auto root = serialize::read_pt(last).toGenericDict();
  root.insert_or_assign("format", 3);
  serialize::write_pt(last, root);
  const auto newer = read_file(last), metrics = read_file(options.out / "metrics.csv");
  options.checkpoint.resume = "auto";
  options.epochs = 2;
  CHECK_THROWS_WITH(run(make_task(), options), ContainsSubstring("last.pt") &&
                                                   ContainsSubstring("'format': expected 1 or 2, got 3") &&
                                                   ContainsSubstring("nothing was changed"));
  CHECK(read_file(last) == newer);
  CHECK(read_file(options.out / "metrics.csv") == metrics);
  CHECK(checkpoints_in(options.out) == std::set<std::string>{"last.pt"});
}

TEST_CASE("a run that has ended is not trained further by the same command", "[fit]") {
  const TempDir dir;
  const int ranks = GENERATE(1, 2);
  const std::string end = GENERATE("epochs", "steps", "patience", "time");
  CAPTURE(ranks, end);
  auto options = options_in(dir.path(), end == "epochs" ? 1 : 50);
  if (end == "steps") options.max_steps = kSteps + 1;
  if (end == "patience") options.checkpoint.patience = 2;
  if (end == "patience") options.checkpoint.mode = "min";
  if (end == "time") options.max_seconds = 1e-3;
  options.checkpoint.resume = "auto";
  run(make_task(), options, ranks);
  const auto files = [&] {
    std::string text;
    for (const char* name : {"summary.json", "metrics.csv", "checkpoints/last.pt"})
      text += read_file(options.out / name);
    return text;
  };
  const auto before = files();
  const auto step = [&] { return read_checkpoint(options.out / "checkpoints/last.pt").step; };
  const auto ended_at = step();
  run(make_task(), options, ranks);
  CHECK(files() == before);

  fs::remove(options.out / "summary.json");  // as if it had been killed in its last test
  run(make_task(), options, ranks);
  CHECK(step() == ended_at);
  CHECK(nlohmann::json::parse(read_file(options.out / "summary.json")).contains("test_loss"));

  if (end == "epochs") options.epochs = 2;
  if (end == "steps") options.max_steps = kSteps + 3;
  if (end == "patience") options.checkpoint.patience = 3;
  if (end == "time") options.max_seconds = 0, options.epochs = 1;
  run(make_task(), options, ranks);
  CHECK(step() > ended_at);
}
