#include <torch/types.h>

#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"
#include "worker/commands/commands.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::test;

namespace {

const fs::path kExportGolden = fs::path(DDPRUN_GOLDEN_DIR) / "python_files";

int run_export(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "export");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  return run_export_command(static_cast<int>(argv.size()), argv.data());
}

/// A checkpoint with averaged weights.
fs::path checkpoint(const fs::path& folder) {
  auto weights = make_dict(), averages = make_dict();
  weights.insert("fc.weight", torch::ones({2, 3}));
  weights.insert("fc.bias", torch::zeros({2}));
  averages.insert("n_averaged", torch::tensor(4));
  averages.insert("module.fc.weight", torch::full({2, 3}, 0.5));
  averages.insert("module.fc.bias", torch::zeros({2}));
  train::TrainingState state;
  state.model = weights;
  state.optimizer = make_dict();
  state.ema = averages;
  train::save_checkpoint(folder / "last.pt", state);
  return folder / "last.pt";
}

}  // namespace

TEST_CASE("export does not write over a file that a run has listed", "[export]") {
  const TempDir folder;
  const auto source = checkpoint(folder.path());
  const auto run = folder.path() / "run";
  const auto last = checkpoint(run / "checkpoints"), mine = run / "checkpoints/mine.pt";
  write_file_atomic(run / "weights.pt", "the run's");
  write_file_atomic(run / "run.json", R"({"run":"01","files":{"checkpoints/last.pt":1,"weights.pt":1}})");
  for (const auto& listed : {last, run / "weights.pt"}) {
    const auto before = read_file(listed);
    CHECK_THROWS_WITH(run_export({source, listed}),
                      ContainsSubstring("expected OUT to be a file that does not belong to the run in ") &&
                          ContainsSubstring(listed.string()));
    CHECK(read_file(listed) == before);
  }
  CHECK(run_export({source, mine}) == 0);
  write_file_atomic(folder.path() / "run.json", "another program's");
  CHECK(run_export({source, folder.path() / "out.pt"}) == 0);
}

TEST_CASE("export writes a checkpoint's weights as a bare state_dict or as safetensors", "[export]") {
  const TempDir folder;
  const auto source = checkpoint(folder.path());
  for (const char* name : {"out.pt", "out.safetensors"}) {
    CAPTURE(name);
    const auto out = folder.path() / name;
    CHECK(run_export({source, out}) == 0);
    CHECK(train::read_weights(out).size() == 2);
    CHECK(train::read_weights(out)[0].second.equal(torch::ones({2, 3})));
    CHECK(run_export({source, out, "--ema"}) == 0);
    CHECK(train::read_weights(out)[0].first == "fc.weight");
    CHECK(train::read_weights(out)[0].second.equal(torch::full({2, 3}, 0.5)));
  }
  const auto bare = serialize::read_pt(folder.path() / "out.pt").toGenericDict();
  CHECK(bare.size() == 2);
  CHECK(bare.at("fc.bias").isTensor());
}

TEST_CASE("export keeps tied weights tied from one format to the other", "[export]") {
  const TempDir folder;
  const auto pt = folder.path() / "a.pt", back = folder.path() / "a.safetensors";
  CHECK(run_export({kExportGolden / "tied.safetensors", pt}) == 0);
  const auto weights = train::read_weights(pt);
  REQUIRE(weights.size() == 2);
  CHECK(weights[0].second.is_alias_of(weights[1].second));
  CHECK(run_export({pt, back}) == 0);
  CHECK(serialize::read_safetensors(back).metadata.at("head.weight") == "embed.weight");
  CHECK(train::read_weights(back).size() == 2);
}

TEST_CASE("export refuses with one line what it cannot do", "[export]") {
  const TempDir folder;
  const auto source = checkpoint(folder.path());
  const auto out = (folder.path() / "out.pt").string();
  CHECK_THROWS_AS(run_export({source}), UsageError);
  CHECK_THROWS_AS(run_export({source, out, "--eam"}), UsageError);
  CHECK_THROWS_AS(run_export({source, "out.onnx"}), UsageError);
  CHECK_THROWS_WITH(
      run_export({source, "out.onnx"}),
      "export: expected OUT to end in .pt, .safetensors or .ckpt, got 'out.onnx'; a folder is for a "
      "checkpoint of the task sam");
  CHECK_THROWS_WITH(run_export({folder.path() / "none.pt", out}), ContainsSubstring("none.pt: cannot open"));
  CHECK_THROWS_WITH(run_export({kExportGolden / "inert.pt", out}), ContainsSubstring("holds no weights"));
  CHECK_THROWS_WITH(run_export({kExportGolden / "tied.safetensors", out, "--ema"}),
                    ContainsSubstring("holds no averaged weights"));
  CHECK_THROWS_WITH(run_export({source, folder.path() / "none" / "out.safetensors"}),
                    ContainsSubstring("out.safetensors: cannot create: No such file"));
  for (const auto& weights : {source, kExportGolden / "tied.safetensors"})
    CHECK_THROWS_WITH(run_export({weights, folder.path() / "sam"}),
                      ContainsSubstring("a folder is for a checkpoint of the task sam"));
  CHECK_FALSE(fs::exists(out));
  CHECK_THROWS_WITH(run_export({source, source}),
                    "export: expected OUT to be a file other than CHECKPOINT, which it would replace, got '" +
                        source.string() + "'");
}

TEST_CASE("export does not replace a link that leads to an open file", "[export]") {
  const TempDir folder;
  const auto source = checkpoint(folder.path());
  fs::create_symlink("/dev/stdout", folder.path() / "stdout.pt");
  fs::create_symlink("stdout.pt", folder.path() / "link.pt");
  CHECK_THROWS_WITH(run_export({source, folder.path() / "link.pt"}),
                    ContainsSubstring("is a device or a pipe"));
  CHECK(fs::is_symlink(folder.path() / "link.pt"));
}

TEST_CASE("export names what the other format cannot hold", "[export]") {
  const TempDir folder;
  auto weights = make_dict();
  weights.insert("a", torch::ones({2}, torch::kComplexDouble));
  serialize::write_pt(folder.path() / "a.pt", weights);
  CHECK_THROWS_WITH(run_export({folder.path() / "a.pt", folder.path() / "a.safetensors"}),
                    ContainsSubstring("a.safetensors: tensor \"a\" is of a kind"));
}
