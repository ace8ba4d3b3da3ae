#include "worker/config/kept_checkpoints.h"

#include <ATen/core/Dict.h>

#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"

using namespace ddprun;
using namespace ddprun::test;
using train::make_list;
using train::make_state;
using worker::best_checkpoints;

TEST_CASE("a checkpoint of Lightning without a list of the best ones has none", "[kept_checkpoints]") {
  const TempDir run;
  const auto path = run.path() / "checkpoints/last.pt";
  const auto best_of = [&](const c10::IValue& callback) {
    train::TrainingState state{.model = make_state(), .optimizer = make_state()};
    state.callbacks = {{"ModelCheckpoint{'monitor': None}", callback}};
    train::save_checkpoint(path, state);
    return best_checkpoints(train::state_files(train::RunFolder(run.path())));
  };
  CHECK(best_of(make_state({{"best_model_path", ""}})).scores.empty());  // as before Lightning 1.6
  const auto damaged = {c10::IValue(make_list()), c10::IValue(make_state({{"a.pt", "no number"}}))};
  for (const auto& models : damaged)
    CHECK_THROWS_WITH(best_of(make_state({{"best_model_path", ""}, {"best_k_models", models}})),
                      ContainsSubstring(path.string() + ": "));
}

TEST_CASE("a checkpoint of a newer version is not evaluated as weights without a run", "[kept_checkpoints]") {
  const TempDir dir;
  const auto path = dir.path() / GENERATE("last.pt", "last.ckpt");
  train::TrainingState state{.model = make_state(), .optimizer = make_state()};
  state.config_json = R"({"task": "linear", "val_split": 0.25})";
  train::save_checkpoint(path, state);
  CHECK(parse({"linear", "--eval=" + path.string()}).data.val_split == 0.25);
  const auto root = serialize::read_pt(path);
  auto of_ddprun = root.toGenericDict();
  if (path.extension() == ".ckpt") of_ddprun = of_ddprun.at("ddprun").toGenericDict();
  of_ddprun.insert_or_assign("format", 3);
  serialize::write_pt(path, root);
  CHECK_THROWS_WITH(parse({"linear", "--eval=" + path.string()}),
                    ContainsSubstring(path.string()) && ContainsSubstring("expected 1 or 2, got 3"));
}

TEST_CASE("weights in a format that tells nothing of a run are evaluated with what is given",
          "[kept_checkpoints]") {
  const TempDir dir;
  const auto old = dir.path() / "resnet20.th", lightning = dir.path() / "two.ckpt";
  write_file_atomic(old, "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.");  // torch's, before its zip files
  CHECK(parse({"linear", "--eval=" + old.string()}).model.eval == old.string());
  serialize::write_pt(lightning, make_state({{"pytorch-lightning_version", "2.5"},
                                             {"optimizer_states", make_list()},
                                             {"loops", make_state()},
                                             {"state_dict", make_state()}}));
  CHECK(parse({"linear", "--eval=" + lightning.string()}).model.eval == lightning.string());
}
