// The trainer with a task of another kind than the documented ones: measures of its own, batches with more
// than input and target, pictures of its own; on two ranks.
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace ddprun::train;
using ddprun::ddp::ProcessGroup;
using ddprun::test::Approx;
using ddprun::test::ContainsSubstring;
using ddprun::test::run_ranks;
namespace fs = std::filesystem;

namespace {

/// Example i: input i, class i % 3, and beside them i / 10.
class NumberedExamples : public data::Dataset {
 public:
  explicit NumberedExamples(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto i = torch::tensor(indices, torch::kInt64);
    return {i.to(torch::kFloat32).view({-1, 1}), i % 3, {i / 10.0}};
  }

 private:
  std::int64_t size_;
};

/// Its "dice" is what lies beside the example, whatever the weights; class 1 is always taken for class 2.
Task numbered_task(std::int64_t train_size, std::int64_t validation_size) {
  torch::manual_seed(5);
  torch::nn::Linear model(1, 1);
  Task task;
  task.name = "numbered";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = std::make_shared<NumberedExamples>(train_size);
  task.validation_set = std::make_shared<NumberedExamples>(validation_size);
  task.eval_batch_size = 2;
  task.measures = {"dice", "pixel_acc"};
  task.class_names = {"a", "b", "c"};
  task.compute_loss = [model](const data::Batch& batch) mutable {
    const auto losses = (model->forward(batch.input) / 10).square().squeeze(1);
    const auto taken_for = torch::where(batch.target == 1, 2, batch.target);
    return BatchResult{losses,
                       {{"dice", batch.extra.at(0)}, {"pixel_acc", torch::ones_like(losses)}},
                       torch::nn::functional::one_hot(taken_for, 3)};
  };
  task.shown_samples = 3;
  task.draw_samples = [](const std::vector<Evaluated>& evaluated, const std::string& set) {
    auto picture = image::make_image(set == "training set" ? 41 : 40, 30, 3);
    for (std::size_t i = 0; i < evaluated.size(); ++i)  // the first example of each batch
      picture.bytes[i] = static_cast<std::uint8_t>(evaluated[i].batch.input[0].item<float>() + 100);
    picture.bytes.back() = static_cast<std::uint8_t>(evaluated.front().batch.size());
    return picture;
  };
  return task;
}

TrainerOptions two_epochs_in(const fs::path& out) {
  TrainerOptions options;
  options.epochs = 2;
  options.batch_size = 2;
  options.log_interval = 1;
  options.progress = false;
  options.out = out;
  options.checkpoint.monitor = "val_dice";
  options.checkpoint.top_k = 1;
  options.checkpoint.filename = "{epoch}-{val_dice:.3f}";
  return options;
}

/// The newest value of each figure of metrics.csv.
std::map<std::string, double> newest_figures(const fs::path& out) {
  std::map<std::string, double> figures;
  for (const auto& row : report::read_metrics_csv(out / "metrics.csv"))
    for (const auto& [name, value] : row) figures[name] = value;
  return figures;
}

/// Two ranks, on 5 training and 7 validation examples, in a folder with a configuration.
void run_in(const fs::path& out) {
  write_file_atomic(out / "config.toml", "lr = 0.5\n[ddp]\n");
  run_ranks(2, [&](const ProcessGroup& group) {
    auto task = numbered_task(5, 7);
    fit(task, two_epochs_in(out), group);
  });
}

}  // namespace

TEST_CASE("a task's own measures are told of every set, exactly over ranks", "[fit]") {
  const TempDir dir;
  run_in(dir.path());
  const auto figures = newest_figures(dir.path());
  const auto summary = nlohmann::json::parse(read_file(dir.path() / "summary.json"));
  for (const auto& [name, value] :
       {std::pair{"train_dice", 0.2}, {"val_dice", 0.3}, {"val_pixel_acc", 1.0}}) {
    CAPTURE(name);
    CHECK(figures.at(name) == Approx(value));
    CHECK(summary[name] == Approx(value));
  }
  CHECK_FALSE(figures.contains("train_acc"));
  // A larger one is better, so the equal one of the second epoch is not.
  CHECK(fs::exists(dir.path() / "checkpoints/epoch=0-val_dice=0.300.pt"));
}

TEST_CASE("measures are metrics to go by, the larger the better", "[fit]") {
  const auto task = numbered_task(5, 7);
  CHECK(choose_monitor(task, "val_dice") == "val_dice");
  CHECK_THROWS_WITH(choose_monitor(task, "val_acc"),
                    ContainsSubstring("expected one of train_loss_epoch, train_dice, train_pixel_acc, "
                                      "val_loss, val_dice, val_pixel_acc"));
  for (const char* name : {"val_dice", "val_iou", "val_pixel_acc", "val_acc"})
    CHECK(monitor_mode({}, name) == MonitorMode::kMax);
  CHECK(monitor_mode({}, "val_loss") == MonitorMode::kMin);
}

TEST_CASE("totals refuse a result with other measures than their task's", "[fit]") {
  Totals totals({"dice"});
  const auto one = torch::ones({1});
  CHECK_THROWS_AS(totals.add({one, {}}, 1), std::invalid_argument);
  CHECK_THROWS_AS(totals.add({one, {{"iou", one}}}, 1), std::invalid_argument);
  CHECK_THROWS_AS(totals.set_sums({1, 1}), std::invalid_argument);
  CHECK_NOTHROW(totals.add({one, {{"dice", one}}}, 1));
}

TEST_CASE("what an epoch has measured so far goes on in a resumed run", "[fit]") {
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    for (const std::int64_t steps : {2, 3}) {  // of three an epoch
      auto task = numbered_task(12, 2);
      auto options = two_epochs_in(dir.path());
      options.epochs = 1;
      options.max_steps = steps;
      options.checkpoint.resume = "auto";
      fit(task, options, group);
    }
  });
  CHECK(newest_figures(dir.path()).at("train_dice") == Approx(0.55));
}

TEST_CASE("a confusion matrix counts every sample of all ranks once", "[fit]") {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto task = numbered_task(5, 7);
    const TrainerOptions options;
    const Run run{task, options, group};
    ParallelModel model(run);
    const auto found = *evaluate(model, run, *task.validation_set, [] {});
    const auto expected = torch::tensor({{3, 0, 0}, {0, 0, 2}, {0, 0, 2}});
    ensure(found.confusion->counts().equal(expected), "three of class a, two of b taken for c, two of c");
    ensure(found.shown.size() == 2, "of batches as many as have three samples");
  });
}

TEST_CASE("a task that says what a sample is shows the worst of all ranks, also over the epochs", "[fit]") {
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    auto task = numbered_task(5, 7);
    task.sample_of = [](const Evaluated& all, std::int64_t i) {
      const auto alone = [i](const torch::Tensor& tensor) { return tensor.narrow(0, i, 1); };
      Evaluated sample{all.batch.mapped(alone), {alone(all.result.losses), {}, alone(all.result.scores)}};
      for (const auto& [name, values] : all.result.measures)  // the later of an example, the worse
        sample.result.measures.emplace_back(name, -alone(values));
      return sample;
    };
    task.draw_epoch = [](const std::vector<Evaluated>& worst) {
      return image::make_image(static_cast<int>(worst.size()), 1, 3);
    };
    fit(task, two_epochs_in(dir.path()), group);
  });
  const auto samples = image::read_png(dir.path() / "figures/samples.png");
  CHECK((samples.bytes[0] == 106 && samples.bytes[1] == 105 && samples.bytes[2] == 104));
  CHECK(samples.bytes[3] == 0);  // no more than shown_samples
  CHECK(samples.bytes.back() == 1);
  for (const char* name : {"000001.png", "000002.png", "end.png"})
    CHECK(image::read_png(dir.path() / "figures/epochs" / name).width == 3);
  CHECK_THAT(read_file(dir.path() / "report.html"), ContainsSubstring("title=\"epoch 2\" hidden"));
}

TEST_CASE("a run leaves its pictures, its configuration and what its ranks used", "[fit]") {
  const TempDir dir;
  run_in(dir.path());
  const auto samples = image::read_png(dir.path() / "figures/samples.png");
  CHECK(samples.width == 40);
  CHECK(samples.height == 30);
  CHECK(samples.bytes[0] == 100);  // rank 0 has the even examples
  CHECK(samples.bytes[1] == 104);
  const auto trained = image::read_png(dir.path() / "figures/training_samples.png");
  CHECK(trained.width == 41);
  CHECK(trained.bytes[0] >= 100);  // one batch
  CHECK(trained.bytes[1] == 0);
  CHECK(trained.bytes.back() == 2);  // not the epoch's last, which is smaller
  CHECK(read_file(dir.path() / "figures/confusion.svg").starts_with("<svg "));
  CHECK(read_file(dir.path() / "figures/accuracy.svg").starts_with("<svg "));

  const auto figures = newest_figures(dir.path());
  for (const char* name : {"cpu_percent_rank0", "cpu_percent_rank1"}) CHECK(figures.contains(name));
  for (const char* name : {"rss_mb_rank1", "peak_rss_mb_rank0"}) CHECK(figures.at(name) > 20);
  CHECK_FALSE(figures.contains("gpu_percent_rank0"));
  const auto summary = nlohmann::json::parse(read_file(dir.path() / "summary.json"));
  CHECK(summary["peak_rss_mb"].get<double>() >= figures.at("peak_rss_mb_rank0"));
  CHECK(summary["time"]["training_seconds"].get<double>() > 0);
  double parts = summary["time"]["other_seconds"].get<double>();
  CHECK(parts >= 0);
  for (const char* part : {"start_seconds", "data_wait_seconds", "compute_seconds", "communication_seconds",
                           "evaluation_seconds", "checkpoint_stall_seconds"}) {
    INFO(part);
    CHECK(summary["time"][part].get<double>() > 0);
    parts += summary["time"][part].get<double>();
  }
  CHECK(parts == Approx(summary["time"]["process_seconds"].get<double>()));

  test::check_python(dir.path(), "tensorboard", R"(
import io
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator('.')
events.Reload()
assert sorted(events.Tags()['images']) == ['train/samples', 'val/confusion', 'val/samples'], events.Tags()
first, sample = events.Images('val/samples')
assert (first.step, sample.step) == (2, 4), (first, sample)
assert (sample.step, sample.width, sample.height) == (4, 40, 30), sample
assert Image.open(io.BytesIO(sample.encoded_image_string)).getpixel((0, 0)) == (100, 104, 0)
text, = events.Tensors('config/text_summary')
assert text.tensor_proto.string_val == [b'    lr = 0.5\n    [ddp]\n'], text
assert 'system/rank1/rss_mb' in events.Tags()['scalars'], events.Tags()
)");
}

TEST_CASE(
    "a program's own callback sees each step, validation and epoch, can end the run, and is in checkpoints",
    "[fit]") {
  struct Seen : Callback {
    void on_step(const TrainState&, Control&) override { calls += 's'; }
    void on_validation(const TrainState& state, Control&) override {
      calls += find_metric(state.metrics, "val_loss") ? 'v' : '?';
    }
    void on_epoch(const TrainState& state, Control& control) override {
      calls += find_metric(state.metrics, "train_loss_epoch") ? 'e' : '?';
      if (calls.size() > stop_after) control.request_stop("enough");
    }
    std::string name() const override { return "Seen"; }
    c10::IValue state_dict() const override { return make_state({{"calls", calls}}); }
    void load_state_dict(const c10::impl::GenericDict& state) override {
      calls = state.at("calls").toStringRef();
    }
    std::string calls;
    std::size_t stop_after = 100;
  };
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    auto task = numbered_task(6, 4);
    auto options = two_epochs_in(dir.path() / "run");
    const auto first = std::make_shared<Seen>();
    first->stop_after = 3;
    options.callbacks = {first};
    fit(task, options, group);
    options.callbacks = {first, std::make_shared<Seen>()};
    bool refused = false;
    try {
      auto again = options;
      again.out = dir.path() / "other";
      fit(task, again, group);
    } catch (const std::invalid_argument& error) {
      refused = std::string(error.what()).find("got 'Seen' again") != std::string::npos;
    }
    ensure(refused, "two states cannot have one name");
    ensure(first->calls == "ssve", first->calls.c_str());  // the first epoch was enough
    const auto second = std::make_shared<Seen>();
    options.callbacks = {second};
    options.checkpoint.resume = "auto";
    options.epochs = 3;
    fit(task, options, group);
    ensure(second->calls == "ssvessvessve", second->calls.c_str());
  });
}
