#include <ddprun/train/state/checkpoint.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;

namespace {

const fs::path kTrainers = fs::path(DDPRUN_GOLDEN_DIR) / "python_files/trainer.ckpt";

c10::impl::GenericDict entry(const char* key, const c10::IValue& value) {
  auto dict = make_dict();
  dict.insert(key, value);
  return dict;
}

c10::impl::GenericDict part(c10::impl::GenericDict of, std::initializer_list<const char*> keys) {
  for (const char* key : keys) of = of.at(key).toGenericDict();
  return of;
}

c10::impl::GenericDict root_of(const fs::path& path) { return serialize::read_pt(path).toGenericDict(); }

TrainingState state_in_epoch_4() {
  TrainingState state;
  state.model = entry("fc.weight", torch::ones({3}));
  state.optimizer = entry("state", make_dict());
  state.epoch = 4;
  state.step = 33;
  state.config_json = R"({"accumulate":2,"batch_size":8,"dropout":null,"lr":0.5})";
  state.position = {4, 80};
  state.lr_schedule = entry("last_epoch", 4);
  state.scaler = entry("scale", 2.0);
  state.ema = entry("module.fc.weight", torch::zeros({3}));
  state.callbacks = {{"Trainer", entry("train_examples", 120)},
                     {"EarlyStopping{'monitor': 'x'}", entry("wait_count", 2)}};
  state.world_size = 2;
  state.prefix = "net.";
  return state;
}

}  // namespace

TEST_CASE("a .ckpt has Lightning's layout and comes back whole", "[lightning]") {
  const TempDir dir;
  const auto path = dir.path() / "a.ckpt";
  const auto state = state_in_epoch_4();
  save_checkpoint(path, state);
  CHECK(same(to_value(read_checkpoint(path)), to_value(state)));
  CHECK(read_weights(path).front().first == "fc.weight");
  CHECK(read_weights(path, WeightsOf::kAverages).front().second.equal(torch::zeros({3})));
  CHECK(same(to_value(read_weights_of_checkpoint(path)).toGenericDict().at("model"), state.model));

  const auto root = root_of(path);
  CHECK(root.at("state_dict").toGenericDict().begin()->key().toStringRef() == "net.fc.weight");
  CHECK(part(root, {"hyper_parameters"}).at("learning_rate").toDouble() == 0.5);
  CHECK_FALSE(part(root, {"hyper_parameters"}).contains("dropout"));
  CHECK(part(root, {"callbacks"}).size() == 1);
  const auto loop = part(root, {"loops", "fit_loop"});
  CHECK(part(loop, {"epoch_progress", "total"}).at("started").toInt() == 5);
  CHECK(part(loop, {"epoch_progress", "total"}).at("completed").toInt() == 4);
  CHECK(part(loop, {"epoch_loop.batch_progress", "current"}).at("completed").toInt() == 5);  // 80 / 2 / 8
  CHECK_FALSE(part(loop, {"epoch_loop.batch_progress"}).at("is_last_batch").toBool());
  const auto steps = part(loop, {"epoch_loop.automatic_optimization.optim_progress", "optimizer", "step"});
  CHECK(part(steps, {"total"}).at("completed").toInt() == 33);
  CHECK(part(steps, {"current"}).at("completed").toInt() == 3);
}

TEST_CASE("between epochs Lightning's loops have finished one", "[lightning]") {
  auto state = state_in_epoch_4();
  state.position = {5, 0};
  const auto loop = part(to_lightning(state).toGenericDict(), {"loops", "fit_loop"});
  for (const char* key : {"ready", "started", "processed", "completed"})
    CHECK(part(loop, {"epoch_progress", "total"}).at(key).toInt() == 5);
  CHECK(part(loop, {"epoch_loop.batch_progress", "current"}).at("completed").toInt() == 8);  // 120 / 2 / 8
  CHECK(part(loop, {"epoch_loop.batch_progress"}).at("is_last_batch").toBool());
}

TEST_CASE("the state in a file of Lightning's Trainer is read", "[lightning]") {
  const auto state = read_checkpoint(kTrainers);
  CHECK(state.step == 2);
  CHECK(state.position.epoch == 1);
  CHECK(state.position.samples == 0);
  CHECK(state.world_size == 0);
  CHECK(state.lr_schedule.toGenericDict().at("last_epoch").toInt() == 1);
  CHECK(state.config_json == R"({"lr":0.01,"scale_lr":"none","weight_decay":0.0})");
  CHECK(state.callbacks.begin()->first == "EarlyStopping{'monitor': 'train_loss', 'mode': 'min'}");

  const TempDir dir;
  const auto root = root_of(kTrainers);
  const auto loop = part(root, {"loops", "fit_loop"});
  const auto batches = part(loop, {"epoch_loop.batch_progress"});
  const auto reread = [&] {
    serialize::write_pt(dir.path() / "a.ckpt", root);
    return read_checkpoint(dir.path() / "a.ckpt").position;
  };
  part(loop, {"epoch_progress", "current"}).insert_or_assign("started", 2);
  CHECK(reread().epoch == 2);  // its last batch is done, its validation was not
  batches.insert_or_assign("is_last_batch", false);
  part(batches, {"current"}).insert_or_assign("processed", 3);
  CHECK(reread().epoch == 1);
  CHECK(reread().samples == 3);  // batches
}

TEST_CASE("a Lightning file that cannot be resumed says why, and its weights are read", "[lightning]") {
  const TempDir dir;
  const auto path = dir.path() / "a.ckpt";
  const auto root = root_of(kTrainers);
  auto both = root.at("optimizer_states").toList();
  both.push_back(both.get(0));
  serialize::write_pt(path, root);
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("a.ckpt") &&
                                               ContainsSubstring("'optimizer_states': expected one, got 2"));
  CHECK(read_weights(path).size() == 7);
  both.pop_back();
  part(root, {"state_dict"}).insert("odd", 1);
  serialize::write_pt(path, root);
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("'state_dict': 'odd': expected a tensor"));
  (void)part(root, {"state_dict"}).erase("odd");
  (void)root.erase("optimizer_states");
  serialize::write_pt(path, root);
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("for weights alone, use --init-weights"));
  CHECK_FALSE(read_if_checkpoint(path));
  CHECK(read_weights(path).size() == 7);
}

TEST_CASE("any prefix of all names is dropped if the rest fits the model", "[lightning]") {
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
  auto weights = read_weights(kTrainers);
  for (auto& [name, tensor] : weights) name.insert(0, "_orig_mod.backbone.");
  load_weights(*model, weights, "a.ckpt");
  CHECK(model->named_parameters()["0.weight"].equal(weights.front().second));
  weights.back().first = "other." + weights.back().first;
  CHECK_THROWS_WITH(load_weights(*model, weights, "a.ckpt"), ContainsSubstring("do not fit the model"));
}
