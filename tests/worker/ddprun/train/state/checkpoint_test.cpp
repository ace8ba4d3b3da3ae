#include <ddprun/train/state/checkpoint.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adam.h>

#include <fstream>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"
#include "worker/models/classifiers.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;

namespace {

c10::impl::GenericDict one_entry(const char* key, const c10::IValue& value) {
  auto dict = make_dict();
  dict.insert(key, value);
  return dict;
}

/// A state whose numbers all tell its step.
TrainingState small_state(std::int64_t step) {
  TrainingState state;
  state.model = one_entry("weight", torch::full({3}, static_cast<double>(step)));
  state.optimizer = one_entry("state", make_dict());
  state.step = step;
  return state;
}

/// With every part that there is.
TrainingState whole_state() {
  auto state = small_state(99);
  state.epoch = 4;
  state.config_json = R"({"task":"mnist","lr":0.001,"dropout":null,"betas":[0.9,0.99],"data":{"root":"x"}})";
  state.position = {4, 640};
  state.lr_schedule = one_entry("last_epoch", 4);
  state.scaler = one_entry("scale", 65536.0);
  state.ema = one_entry("module.weight", torch::ones({3}));
  state.generators = {generator_state(torch::kCPU),
                      {torch::arange(8, torch::kByte), torch::ones({16}, torch::kByte)}};
  state.callbacks = {{"EarlyStopping", one_entry("wait_count", 2)}, {"ModelCheckpoint", make_dict()}};
  state.world_size = 2;
  return state;
}

void damage(const fs::path& path, std::uintmax_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

fs::path saved(const fs::path& run, const char* name, const TrainingState& state) {
  const auto path = run / "checkpoints" / name;
  save_checkpoint(path, state);
  return path;
}

}  // namespace

TEST_CASE("a checkpoint holds the weights and the optimizer's state, and leaves no other file",
          "[checkpoint]") {
  const TempDir dir;
  const auto path = dir.path() / "checkpoints" / "last.pt";
  models::MnistCnn model, other;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  torch::nll_loss(model->forward(torch::randn({2, 1, 28, 28})), torch::tensor({1, 2}, torch::kInt64))
      .backward();
  optimizer.step();
  save_checkpoint(path, {state_dict(*model), optimizer_state_dict(optimizer), 4, 99, R"({"task":"mnist"})"});

  const auto state = read_checkpoint(path);
  CHECK(state.epoch == 4);
  CHECK(state.step == 99);
  CHECK(state.optimizer.toGenericDict().at("state").toGenericDict().size() == 8);
  load_weights(*other, to_weights(state.model, path), path);
  for (const auto& item : model->named_parameters())
    CHECK(item.value().equal(other->named_parameters()[item.key()]));
  load_weights(*other, read_weights(path), path);
  for (const auto& entry : fs::directory_iterator(path.parent_path())) CHECK(entry.path() == path);
}

TEST_CASE("a training state comes back whole", "[checkpoint]") {
  const TempDir dir;
  const auto state = whole_state();
  save_checkpoint(dir.path() / "a.pt", state);
  const auto found = read_checkpoint(dir.path() / "a.pt");
  CHECK(same(to_value(found), to_value(state)));
  CHECK(found.position.epoch == 4);
  CHECK(found.position.samples == 640);
  CHECK(found.world_size == 2);
  REQUIRE(found.generators.size() == 2);
  CHECK(found.generators[0].cpu.equal(state.generators[0].cpu));
  CHECK_FALSE(found.generators[0].cuda.defined());
  CHECK(found.generators[1].cuda.numel() == 16);
  CHECK(found.callbacks.at("EarlyStopping").toGenericDict().at("wait_count").toInt() == 2);
  CHECK(found.config_json ==
        R"({"betas":[0.9,0.99],"data":{"root":"x"},"dropout":null,"lr":0.001,"task":"mnist"})");
}

TEST_CASE("what a training does not use is not in its checkpoint", "[checkpoint]") {
  const auto root = to_value(small_state(1)).toGenericDict();
  for (const char* key : {"lr_schedule", "scaler", "ema"}) CHECK_FALSE(root.contains(key));
  CHECK(to_training_state(root, "a.pt").scaler.isNone());
}

TEST_CASE("a configuration's integers beyond 64 bits with sign are kept as text", "[checkpoint]") {
  auto state = small_state(1);
  state.config_json = R"({"seed":18446744073709551615})";
  CHECK(to_training_state(to_value(state), "a.pt").config_json == R"({"seed":"18446744073709551615"})");
}

TEST_CASE("a training state that lacks a part is refused by the part's name", "[checkpoint]") {
  const auto refused = [](const char* key, const c10::IValue& value) {
    auto root = to_value(whole_state()).toGenericDict();
    REQUIRE(root.erase(key) == 1);
    if (!value.isNone()) root.insert(key, value);
    try {
      to_training_state(root, "dir/a.pt");
      return std::string("nothing");
    } catch (const IoError& error) {
      return std::string(error.what());
    }
  };
  for (const char* key : {"model", "optimizer", "epoch", "step", "position", "world_size", "generators",
                          "callbacks", "config"}) {
    CAPTURE(key);
    CHECK(refused(key, {}) ==
          "dir/a.pt: cannot be resumed: state of the run: expected '" + std::string(key) + "', got none");
    CHECK_THAT(refused(key, "text"), ContainsSubstring("'" + std::string(key) + "': expected ") &&
                                         ContainsSubstring(", got String"));
  }
  CHECK_THAT(refused("step", -1), ContainsSubstring("expected an integer >= 0"));
  CHECK_THAT(refused("format", 3), ContainsSubstring("'format': expected 1 or 2, got 3"));
  CHECK_THAT(refused("scaler", 2), ContainsSubstring("'scaler': expected a dict, got Int"));
  CHECK_THAT(refused("position", make_dict()), ContainsSubstring("expected 'epoch', got none"));
  CHECK_THAT(refused("config", one_entry("lr", torch::ones({}))),
             ContainsSubstring("'config': expected numbers, text, lists and dicts, got Tensor"));
  auto list = c10::impl::GenericList(c10::AnyType::get());
  list.push_back(one_entry("cpu", torch::ones({3})));
  CHECK_THAT(refused("generators", list), ContainsSubstring("expected bytes for each device"));
}

TEST_CASE("weights alone are not a training state, and the message says so", "[checkpoint]") {
  const TempDir dir;
  serialize::write_pt(dir.path() / "a.pt", one_entry("weight", torch::ones({3})));
  CHECK_THROWS_WITH(
      read_checkpoint(dir.path() / "a.pt"),
      ContainsSubstring(
          "a.pt: cannot be resumed: state of the run: expected 'format', got none; a run's checkpoints are "
          "in its folder checkpoints/ (for weights alone, use --init-weights)"));
  serialize::write_pt(dir.path() / "a.pt", torch::ones({3}));
  CHECK_THROWS_WITH(read_checkpoint(dir.path() / "a.pt"), ContainsSubstring("expected a dict, got Tensor"));
}

TEST_CASE("a checkpoint of which any byte changed is refused, or reads the same", "[checkpoint]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  const auto state = to_value(whole_state());
  save_checkpoint(path, whole_state());
  const auto bytes = read_file(path);
  for (std::size_t at = 0; at < bytes.size(); at += 19) {
    CAPTURE(at);
    auto changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    std::ofstream(path, std::ios::binary) << changed;
    try {
      const auto found = to_value(read_checkpoint(path));
      REQUIRE(same(found, state));
    } catch (const IoError& error) {
      REQUIRE(std::string(error.what()).starts_with(path.string() + ": "));
    }
  }
}

TEST_CASE("a checkpoint is written into the working folder too", "[checkpoint]") {
  const TempDir dir;
  const auto before = fs::current_path();
  fs::current_path(dir.path());
  CHECK_NOTHROW(save_checkpoint("last.pt", small_state(0)));
  fs::current_path(before);
  CHECK(fs::exists(dir.path() / "last.pt"));
}

TEST_CASE("a checkpoint that cannot be written is refused by name", "[checkpoint]") {
  CHECK_THROWS_AS(save_checkpoint("/dev/null/x/last.pt", small_state(0)), IoError);
}

TEST_CASE("find_resume takes the state of most steps, whatever its name", "[checkpoint]") {
  const TempDir dir;
  CHECK_FALSE(find_resume(dir.path()).found());
  CHECK_FALSE(find_resume(dir.path() / "none").found());
  saved(dir.path(), "last.pt", small_state(10));
  saved(dir.path(), "epoch=3-val_acc=0.90.ckpt", small_state(20));
  saved(dir.path(), "first.pt", small_state(3));
  serialize::write_pt(dir.path() / "checkpoints/weights.pt", one_entry("weight", torch::ones({3})));
  std::ofstream(dir.path() / "checkpoints/notes") << "not a checkpoint";
  std::ofstream(dir.path() / "checkpoints/.last.pt.tmp.7") << "cut";
  const auto found = find_resume(dir.path());
  CHECK(found.path == dir.path() / "checkpoints/epoch=3-val_acc=0.90.ckpt");
  CHECK(found.state.step == 20);
  CHECK(found.skipped.empty());
  CHECK(state_files(RunFolder(dir.path())).size() == 3);
}

TEST_CASE("find_resume takes the later position where the steps are as many", "[checkpoint]") {
  const TempDir dir;
  auto state = small_state(10);
  state.position = {1, 0};
  saved(dir.path(), "a.pt", state);
  state.position = {0, 320};
  saved(dir.path(), "b.pt", state);
  CHECK(find_resume(dir.path()).path.filename() == "a.pt");
}

TEST_CASE("find_resume names a damaged checkpoint and takes the one before", "[checkpoint]") {
  const TempDir dir;
  saved(dir.path(), "step=1.pt", small_state(1));
  saved(dir.path(), "step=2.pt", small_state(2));
  const auto newest = saved(dir.path(), "last.pt", small_state(3));
  const auto intact = read_file(newest);
  // In a tensor's data, which only a whole reading finds; in the pickle; at the front; the end cut off;
  // empty.
  const auto in_tensor = intact.find("\0\0\x40\x40", 0, 4);  // 3.0F
  REQUIRE(in_tensor != std::string::npos);
  for (const std::size_t at : {in_tensor, intact.find("weight"), std::size_t{1}}) {
    CAPTURE(at);
    std::ofstream(newest, std::ios::binary) << intact;
    damage(newest, at);
    const auto found = find_resume(dir.path());
    CHECK(found.path.filename() == "step=2.pt");
    CHECK(found.state.model.toGenericDict().at("weight").toTensor().equal(torch::full({3}, 2.0)));
    REQUIRE(found.skipped.size() == 1);
    CHECK_THAT(found.skipped[0], ContainsSubstring("last.pt: "));
  }
  for (const std::size_t size : {intact.size() - 1, intact.size() / 2, std::size_t{0}}) {
    std::ofstream(newest, std::ios::binary) << intact.substr(0, size);
    CHECK(find_resume(dir.path()).state.step == 2);
    CHECK_THROWS_WITH(read_checkpoint(newest), ContainsSubstring("last.pt: "));
  }
  damage(dir.path() / "checkpoints/step=2.pt", in_tensor);
  CHECK(find_resume(dir.path()).state.step == 1);
  damage(dir.path() / "checkpoints/step=1.pt", in_tensor);
  CHECK_THROWS_WITH(find_resume(dir.path()),
                    ContainsSubstring("last.pt: ") && ContainsSubstring("nothing was changed"));
}

TEST_CASE("Python's torch.load reads a whole training state and goes on with its random numbers",
          "[checkpoint]") {
  const TempDir dir;
  auto state = whole_state();
  models::MnistCnn model;
  state.model = state_dict(*model);
  state.generators[0] = generator_state(torch::kCPU);
  state.callbacks.emplace("next", torch::rand({5}));
  save_checkpoint(dir.path() / "a.pt", state);
  check_python(dir.path(), "torch", R"(
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
d = torch.load('a.pt')
Net().load_state_dict(d['model'], strict=True)
assert d['format'] == 1 and d['epoch'] == 4 and d['step'] == 99 and d['world_size'] == 2
assert d['position'] == {'epoch': 4, 'samples': 640}
assert d['scaler'] == {'scale': 65536.0} and d['lr_schedule'] == {'last_epoch': 4}
assert d['config'] == {'task': 'mnist', 'lr': 0.001, 'dropout': None, 'betas': [0.9, 0.99], 'data': {'root': 'x'}}
assert d['callbacks']['EarlyStopping'] == {'wait_count': 2}
assert list(d['generators'][1]) == ['cpu', 'cuda']
torch.set_rng_state(d['generators'][0]['cpu'])
assert torch.equal(torch.rand(5), d['callbacks']['next'])
)");
}
