// Checkpoints of which each rank of a fully sharded training writes its part.
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/shard_writer.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

using namespace ddprun;
using ddprun::test::ContainsSubstring;
using namespace ddprun::train;
using ddprun::ddp::ProcessGroup;
using ddprun::test::run_ranks;
namespace fs = std::filesystem;

namespace {

/// Several units of different kinds: a convolution, BatchNorm, layers of a unit each, a frozen and a tied
/// one.
struct NetOfKindsImpl : torch::nn::Module {
  NetOfKindsImpl(std::int64_t width, int depth, bool with_tied) {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    in = register_module("in", torch::nn::Linear(8, width));
    for (int i = 0; i < depth; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
    frozen = register_module("frozen", torch::nn::Linear(width, 4));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    if (with_tied) tied = register_parameter("tied", in->bias);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = in->forward(norm->forward(conv->forward(images)).mean({2, 3}));
    for (auto& layer : layers) x = torch::tanh(layer->forward(x));
    return frozen->forward(tied.defined() ? x + tied : x);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear in{nullptr}, frozen{nullptr};
  std::vector<torch::nn::Linear> layers;
  torch::Tensor tied;
};
TORCH_MODULE(NetOfKinds);

/// Example i of 64.
struct Images : data::Dataset {
  std::int64_t size() const override { return 64; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    std::vector<torch::Tensor> images;
    for (const auto i : indices) images.push_back((torch::arange(3 * 4 * 4) * (i + 1)).sin().view({3, 4, 4}));
    const auto numbers = torch::tensor(indices, torch::kInt64);
    return {torch::stack(images).to(torch::kFloat32), numbers};
  }
};

struct Model {
  std::int64_t width = 40;
  int depth = 1;
  bool fsdp = true;
  bool channels_last = false;
  bool tied = true;
};

Task image_task(const Model& model) {
  torch::manual_seed(3);
  NetOfKinds net(model.width, model.depth, model.tied);
  Task task;
  task.name = "images";
  task.data_source = "nowhere";
  task.module = net.ptr();
  task.train_set = task.validation_set = std::make_shared<Images>();
  task.compute_loss = [net](const data::Batch& batch) mutable {
    return BatchResult{(net->forward(batch.input) - 1).square().mean(1)};
  };
  return task;
}

TrainerOptions image_options(const Model& model) {
  TrainerOptions options;
  options.batch_size = 4;
  options.parallel.fsdp = model.fsdp;
  options.precision.channels_last = model.channels_last;
  options.optim.ema = 0.5;
  options.optim.optimizer.kind = OptimizerKind::kAdam;
  options.progress = options.tensorboard = options.report = false;
  return options;
}

struct Training {
  Task task;
  TrainerOptions options;
  const ProcessGroup& group;
  Run run;
  ParallelModel model;

  Training(const Model& kind, const ProcessGroup& group)
      : task(image_task(kind)),
        options(image_options(kind)),
        group(group),
        run{task, options, group},
        model(run) {}

  void train(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      model.zero_grad();
      model.train(Images().get_batch({2 * step + group.rank(), 3 * step + 5 + group.rank()}), true);
    }
  }

  /// As CheckpointSaver does it.
  void save(const fs::path& path) {
    TrainingState state;
    model.synchronize_buffers();
    auto shards = model.save(state);
    if (shards) {
      shards->index.folder = path.stem().string() + ".shards";
      ShardWriter writer(group);
      writer.write(path.parent_path() / shards->index.folder, shards->tensors);
      if (group.rank() == 0) shards->index.checksums = writer.finished()([] { return false; });
      state.shards = to_text(shards->index);
    }
    if (group.rank() == 0) save_checkpoint(path, state);
    ddp::all_reduce_sum(group, {1});
  }
};

TrainingState whole_of(const fs::path& path) {
  auto state = read_checkpoint(path);
  gather_shards(state, path, {"model", "ema", "optimizer"});
  return state;
}

void ensure_same(const fs::path& path, const fs::path& expected, bool with_optimizer) {
  const auto a = whole_of(path), b = whole_of(expected);
  ensure(ddprun::test::same(a.model, b.model), "the same weights and buffers");
  const auto averages = a.ema.toGenericDict(), others = b.ema.toGenericDict();  // Ema's own order differs
  ensure(averages.size() == others.size(), "as many averages");
  for (const auto& item : others)
    ensure(ddprun::test::same(averages.at(item.key()), item.value()), "the same averages");
  ensure(!with_optimizer || ddprun::test::same(a.optimizer, b.optimizer), "the same state of the optimizer");
}

double largest_difference(const StateDict& a, const StateDict& b) {
  const std::map<std::string, torch::Tensor> of_a(a.begin(), a.end());
  ensure(a.size() == b.size() && !a.empty(), "as many tensors");
  double largest = 0;
  for (const auto& [name, tensor] : b)
    largest = std::max(largest, (of_a.at(name) - tensor).abs().max().item<double>());
  return largest;
}

StateDict named(const c10::IValue& state_dict) { return to_weights(state_dict, "a file"); }

/// In MB: VmRSS or VmHWM, the peak since reset_peak().
double memory(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stod(line.substr(line.find(':') + 1)) / 1024;
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

void flip_byte(const fs::path& file, std::streamoff at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const auto byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(at);
  stream.put(byte);
}

}  // namespace

TEST_CASE("a sharded checkpoint is loaded by any number of ranks, sharded or not, and nothing changes",
          "[sharded_checkpoint]") {
  const bool channels_last = GENERATE(false, true);
  const bool tied = !channels_last;
  const TempDir dir;
  const auto at = [&](const char* name) { return dir.path() / name; };
  const Model sharded{.channels_last = channels_last, .tied = tied};
  run_ranks(2, [&](const ProcessGroup& group) {
    Training training(sharded, group);
    training.train(3);
    training.save(at("two.pt"));
  });
  CHECK(fs::exists(at("two.shards") / "rank-1"));
  const auto convert = [&](int ranks, const Model& model, const char* from, const char* to) {
    run_ranks(ranks, [&](const ProcessGroup& group) {
      Training training(model, group);
      training.model.load(read_checkpoint(at(from)), at(from));
      training.save(at(to));
      // A replicated optimizer's state has its keys in another order; "again.pt" compares what it had.
      ensure_same(at(to), at("two.pt"), model.fsdp);
    });
  };
  convert(3, sharded, "two.pt", "three.pt");
  convert(3, {.channels_last = !channels_last, .tied = tied}, "three.pt",
          "otherwise.pt");  // in another memory order
  convert(1, sharded, "otherwise.pt", "one.pt");
  if (tied) return;  // a replicated optimizer has a state for either name
  convert(2, {.fsdp = false, .tied = tied}, "three.pt", "replicated.pt");
  convert(2, sharded, "replicated.pt", "again.pt");
}

TEST_CASE("averages of a fully sharded training, also channels last, are those of a replicated one",
          "[sharded_checkpoint]") {
  const bool channels_last = GENERATE(false, true);
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    for (const bool fsdp : {false, true}) {
      Training training({.fsdp = fsdp, .channels_last = channels_last, .tied = false}, group);
      training.train(4);
      const auto loss = [&] {
        return training.model.evaluate(Images().get_batch({1, 2, 3, 4})).losses.mean().item<double>();
      };
      const auto plain = loss(), averaged = training.model.with_averages(loss);
      ensure(plain != averaged && plain == loss(), "the averages are swapped in and out");
      training.save(dir.path() / (fsdp ? "fsdp.pt" : "ddp.pt"));
    }
    const auto ddp = whole_of(dir.path() / "ddp.pt"), fsdp = whole_of(dir.path() / "fsdp.pt");
    ensure(largest_difference(named(fsdp.model), named(ddp.model)) < 1e-4, "the same weights");
    ensure(largest_difference(weights_to_evaluate(fsdp), weights_to_evaluate(ddp)) < 1e-4,
           "the same averages");
    ensure(largest_difference(weights_to_evaluate(fsdp), named(fsdp.model)) > 1e-3,
           "which are not the weights");
  });
}

TEST_CASE("a rank's memory at a sharded checkpoint stays within 1.15 of that of its steps",
          "[sharded_checkpoint]") {
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto before = memory("VmRSS");
    Training training({.width = 1500, .depth = 10}, group);
    training.train(2);
    reset_peak();
    training.train(2);
    const auto steps = memory("VmHWM") - before;
    reset_peak();
    training.save(dir.path() / "a.pt");
    const auto checkpoint = memory("VmHWM") - before;
    const auto text =
        "steps " + std::to_string(steps) + " MB, checkpoint " + std::to_string(checkpoint) + " MB";
    if (group.rank() == 0) std::cout << text << std::endl;  // for bench/RESULTS.md
    ensure(steps > 200, text.c_str());
    ensure(checkpoint <= 1.15 * steps, text.c_str());
  });
}

TEST_CASE("weights of a sharded checkpoint are exported tensor by tensor", "[sharded_checkpoint]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  run_ranks(2, [&](const ProcessGroup& group) {
    Training training({.width = 1500, .depth = 8}, group);
    training.train(2);
    training.save(path);
  });
  for (const bool averaged : {false, true}) {
    reset_peak();
    const auto before = memory("VmRSS");
    const auto open = open_weights(path, averaged ? WeightsOf::kAverages : WeightsOf::kModel);
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [name, tensor] : open.tensors) dict.insert(name, tensor);
    serialize::write_pt(dir.path() / "out.pt", dict, open.value_of);
    serialize::write_safetensors(dir.path() / "out.safetensors", open.tensors, {}, open.value_of);
    CHECK(memory("VmHWM") - before < 35);  // of 72 MB
    const auto expected = averaged ? read_weights(path, WeightsOf::kAverages) : read_weights(path);
    for (const char* name : {"out.pt", "out.safetensors"}) {
      const auto written = read_weights(dir.path() / name);
      const std::map<std::string, torch::Tensor> by_name(written.begin(), written.end());
      CHECK(by_name.size() == expected.size());
      for (const auto& [key, tensor] : expected) CHECK(by_name.at(key).equal(tensor));
      CHECK(by_name.at("tied").is_alias_of(by_name.at("in.bias")));
    }
  }
}

TEST_CASE("a damaged shard is named, and --resume auto takes the checkpoint before it",
          "[sharded_checkpoint]") {
  const TempDir dir;
  auto options = image_options(Model{});
  options.out = dir.path();
  options.epochs = 2;
  options.checkpoint.top_k = -1;
  options.checkpoint.monitor = "val_loss";
  options.checkpoint.filename = "{epoch}";
  options.checkpoint.save_last = false;
  const auto train = [&](int ranks) {
    run_ranks(ranks, [&](const ProcessGroup& group) { fit(image_task(Model{}), options, group); });
  };
  train(2);
  const auto folder = dir.path() / "checkpoints";
  const auto second = read_checkpoint(folder / "epoch=1.pt");
  const auto shards = folder / ShardReader(folder / "epoch=1.pt", second.shards).index().folder;
  CHECK(find_resume(dir.path()).path == folder / "epoch=1.pt");
  const auto damaged = shards / "rank-1";
  flip_byte(damaged, 1000);
  const auto found = find_resume(dir.path());
  CHECK(found.path == folder / "epoch=0.pt");
  CHECK(found.skipped == std::vector{damaged.string() + ": damaged: CRC error in the bytes from 0"});
  fs::remove(damaged);
  CHECK(find_resume(dir.path()).path == folder / "epoch=0.pt");

  options.checkpoint.resume = "auto";
  train(3);
  CHECK(find_resume(dir.path()).state.world_size == 3);
  CHECK(find_resume(dir.path()).state.step > second.step / 2);
}

TEST_CASE("a shard index with bools for integers is refused, and a shard with other bytes for bools",
          "[sharded_checkpoint]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  const std::string bytes = {1, 0, 2, 1};
  fs::create_directory(dir.path() / "a.shards");
  write_file_atomic(dir.path() / "a.shards/rank-0", bytes);
  ShardIndex index;
  index.units = {{.shard_numel = 4, .parameters = {{"mask", 0, {4}, {1}}}}};
  index.pieces = {{"model", 0, at::kByte, 0}};
  index.names = {{"mask", "mask"}};
  index.folder = "a.shards";
  index.bytes = 4;
  index.checksums = {{crc32_of(bytes)}};
  const auto text = to_text(index);
  CHECK(ShardReader(path, text).whole("model", "mask").sum().item<int>() == 4);

  for (const char* place : {"/pieces/0/1", "/pieces/0/3", "/units/0/parameters/0/1", "/bytes"}) {
    CAPTURE(place);
    auto with_bool = nlohmann::json::parse(text);
    with_bool[nlohmann::json::json_pointer(place)] = false;
    CHECK_THROWS_WITH(ShardReader(path, with_bool.dump()),
                      ContainsSubstring(path.string() +
                                        ": damaged, expected an index of shards: expected text and integers, "
                                        "got boolean"));
  }
  index.pieces[0].dtype = at::kBool;
  CHECK_THROWS_WITH(
      ShardReader(path, to_text(index)).whole("model", "mask"),
      ContainsSubstring("a.shards/rank-0: 'model' of mask holds bools that are neither 0 nor 1"));
}

TEST_CASE("ranks without a common disk resume, each from its own file, or are told which file is missing",
          "[sharded_checkpoint]") {
  const TempDir dir;
  auto options = image_options(Model{});
  options.checkpoint.every_steps = 1;
  const auto train = [&](const std::string& out, int ranks, bool own_disks) {
    options.out = own_disks ? fs::path(out) : dir.path() / out;
    run_ranks(ranks, [&](const ProcessGroup& group) {
      const auto disk = dir.path() / ("disk-" + std::to_string(group.rank()));
      fs::create_directory(disk);
      fs::current_path(disk);
      if (group.rank() == 0) fs::create_directories(options.out);
      fit(image_task(Model{}), options, group);
    });
  };
  options.epochs = 2;
  train("whole", 2, false);
  options.epochs = 1;
  train("run", 2, true);
  const auto disk = [&](int rank) {
    return dir.path() / ("disk-" + std::to_string(rank)) / "run/checkpoints";
  };
  CHECK(shard_folders(disk(0)).size() == 1);
  CHECK(shard_folders(disk(1)).size() <= 2);  // the newest, and the one before it
  CHECK_FALSE(fs::exists(disk(1) / "last.pt"));

  options.epochs = 2;
  options.checkpoint.resume = "auto";
  const auto folder = shard_folders(disk(0)).front().filename();
  CHECK_THROWS_WITH(
      train("run", 3, true),
      ContainsSubstring(folder.string() + "/rank-0: rank 1 needs this part of the checkpoint, but its host"));
  train("run", 2, true);
  const auto newest = shard_folders(disk(0)).front().filename();
  fs::copy(disk(1) / newest / "rank-1", disk(0) / newest / "rank-1");
  ensure_same(disk(0) / "last.pt", dir.path() / "whole/checkpoints/last.pt", true);

  fs::remove_all(disk(1));
  fs::remove(disk(0) / newest / "rank-1");
  options.epochs = 3;
  options.checkpoint.resume = "run/checkpoints/last.pt";
  CHECK_THROWS_WITH(train("run", 2, true), ContainsSubstring("rank-1: cannot open"));
}

TEST_CASE("damage on the disk of another host leads to the checkpoint before it", "[sharded_checkpoint]") {
  const TempDir dir;
  auto options = image_options(Model{});
  options.out = "run";
  options.epochs = 2;
  options.checkpoint.top_k = -1;
  options.checkpoint.monitor = "val_loss";
  options.checkpoint.filename = "{epoch}";
  options.checkpoint.save_last = false;
  const auto disk = [&](int rank) { return dir.path() / ("disk-" + std::to_string(rank)); };
  const auto train = [&] {
    run_ranks(2, [&](const ProcessGroup& group) {
      fs::create_directories(disk(group.rank()) / "run");
      fs::current_path(disk(group.rank()));
      if (group.rank() == 0) ensure(std::freopen("log", "w", stdout) != nullptr, "a log");
      fit(image_task(Model{}), options, group);
    });
  };
  train();
  const auto newest = disk(0) / "run/checkpoints/epoch=1.pt";
  const auto second = read_checkpoint(newest);
  const auto damaged = "run/checkpoints/" + ShardReader(newest, second.shards).index().folder + "/rank-1";
  flip_byte(disk(1) / damaged, 1000);
  const auto line =
      damaged + ": damaged: CRC error in the bytes from 0 (on the disk of rank 1, host " + host_name() + ")";

  options.epochs = 1;
  options.checkpoint.resume = "run/checkpoints/epoch=1.pt";
  CHECK_THROWS_WITH(train(), ContainsSubstring(line));
  options.epochs = 3;
  options.checkpoint.resume = "auto";
  train();
  const auto log = read_file(disk(0) / "log");
  CHECK_THAT(log, ContainsSubstring(line));
  CHECK(log.find(line) == log.rfind(line));
  CHECK_THAT(log, ContainsSubstring("resumed from run/checkpoints/epoch=0.pt"));
  CHECK(read_checkpoint(disk(0) / "run/checkpoints/epoch=2.pt").step == second.step / 2 * 3);
}

TEST_CASE(
    "after a kill at any moment of sharded checkpoints one loads, and the next run leaves no other shards",
    "[sharded_checkpoint]") {
  const TempDir dir;
  auto options = image_options(Model{});
  options.epochs = 100000;
  options.checkpoint.every_steps = 1;
  options.checkpoint.save_last = true;
  options.out = dir.path();
  const auto folder = dir.path() / "checkpoints";
  for (int round = 0; round < 8; ++round) {
    if (round > 0) options.checkpoint.resume = "auto";
    const auto child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);
      try {
        run_ranks(2, [&](const ProcessGroup& group) { fit(image_task(Model{}), options, group); });
      } catch (...) {
      }
      ::_exit(0);
    }
    const auto step = [&]() -> std::int64_t {
      try {
        return read_checkpoint(folder / "last.pt").step;
      } catch (const IoError&) {
        return 0;
      }
    };
    const auto begin = step();
    while (step() < begin + 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::microseconds(2700 * round));
    ::kill(-child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto found = find_resume(dir.path());
    CAPTURE(round);
    CHECK(found.skipped.empty());
    CHECK(found.path == folder / "last.pt");
    CHECK(found.state.step >= begin + 4);
  }
  options.checkpoint.resume = "auto";
  options.max_steps = find_resume(dir.path()).state.step + 2;
  run_ranks(2, [&](const ProcessGroup& group) { fit(image_task(Model{}), options, group); });
  std::set<std::string> shards, used;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) shards.insert(entry.path().filename().string());
    if (entry.path().extension() == ".pt")
      used.insert(ShardReader(entry.path(), read_checkpoint(entry.path()).shards).index().folder);
  }
  CHECK(shards == used);
}
