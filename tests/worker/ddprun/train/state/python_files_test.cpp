// What Python's programs wrote (scripts/golden_checkpoint.py), as read by the readers for it.
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::serialize;
using namespace ddprun::train;

namespace {

const fs::path kPythonGolden = fs::path(DDPRUN_GOLDEN_DIR) / "python_files";
const fs::path kStateDicts = fs::path(DDPRUN_GOLDEN_DIR) / "state_dict_file";

/// A released checkpoint, from $DDPRUN_DATA or from shared/data beside the repository; skips without it.
fs::path resnet20() {
  const char* data = std::getenv("DDPRUN_DATA");
  for (const auto& root :
       {fs::path(data != nullptr ? data : ""), fs::path(DDPRUN_SOURCE_DIR).parent_path() / "shared" / "data"})
    if (const auto path = root / "resnet20" / "resnet20-12fca82f.th"; fs::exists(path)) return path;
  skip("no resnet20/resnet20-12fca82f.th in $DDPRUN_DATA");
}

}  // namespace

TEST_CASE("read_pt keeps the views of shared storages, of both formats of torch.save", "[python_files]") {
  const auto name = GENERATE("views.pt", "views_legacy.pt");
  CAPTURE(name);
  const auto found = read_pt(kPythonGolden / name).toGenericDict();
  const auto tensor = [&](const char* key) { return found.at(key).toTensor(); };
  const auto base = torch::arange(24, torch::kFloat);
  CHECK(tensor("base").equal(base));
  CHECK(tensor("matrix").equal(base.view({4, 6})));
  CHECK(tensor("columns").equal(base.view({4, 6}).slice(1, 1, 3)));
  CHECK(tensor("columns").strides() == at::IntArrayRef({6, 1}));
  CHECK(tensor("every_other").equal(base.slice(0, 1, 24, 2)));
  CHECK(tensor("transposed").equal(base.view({2, 3, 4}).permute({2, 0, 1})));
  CHECK(tensor("expanded").equal(torch::full({3}, 5.0)));
  CHECK(tensor("channels_last").is_contiguous(torch::MemoryFormat::ChannelsLast));
  for (const char* key : {"matrix", "columns", "every_other", "transposed", "expanded"})
    CHECK(tensor(key).is_alias_of(tensor("base")));
}

TEST_CASE("read_pt reads the older format of torch.save as the newer", "[python_files]") {
  CHECK(same(read_pt(kStateDicts / "legacy.pt"), read_pt(kStateDicts / "state_dict.pt")));
  CHECK(read_weights(kStateDicts / "legacy.pt").size() == 9);
  CHECK_THROWS_WITH(peek_pt(kStateDicts / "legacy.pt"), ContainsSubstring("old format, expected a zip"));
}

TEST_CASE("read_pt refuses every truncation of the older format, and what follows its end",
          "[python_files]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  const auto bytes = read_file(kPythonGolden / "views_legacy.pt");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    std::ofstream(path, std::ios::binary) << bytes.substr(0, size);
    REQUIRE_THROWS_AS(read_pt(path), IoError);
  }
  std::ofstream(path, std::ios::binary) << bytes << "x";
  CHECK_THROWS_WITH(read_pt(path), ContainsSubstring("a.pt: ") && ContainsSubstring("1 bytes too many"));
}

TEST_CASE("read_pt reads the newer element types, and refuses what it has no form for", "[python_files]") {
  const auto found = read_pt(kPythonGolden / "new_dtypes.pt").toGenericDict();
  CHECK(found.at("complex64").toTensor().equal(torch::tensor({0, 1, 2}).to(torch::kComplexFloat)));
  CHECK(found.at("complex128").toTensor().scalar_type() == torch::kComplexDouble);
  CHECK(found.at("complex32").toTensor().scalar_type() == torch::kComplexHalf);
  for (const char* key : {"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"}) {
    CAPTURE(key);
    CHECK(found.at(key).toTensor().to(torch::kFloat).equal(torch::tensor({0.F, 1.F, 2.F})));
  }
  CHECK_THROWS_WITH(read_pt(kPythonGolden / "conjugate.pt"), ContainsSubstring("conjugate or negative bit"));
  CHECK_THROWS_WITH(read_pt(kPythonGolden / "sparse.pt"), ContainsSubstring("_rebuild_sparse_tensor"));
}

TEST_CASE("read_pt reads devices, counters and ordered dicts as plain values", "[python_files]") {
  const auto found = read_pt(kPythonGolden / "inert.pt").toGenericDict();
  CHECK(found.at("device").toStringRef() == "cuda:1");
  CHECK(found.at("cpu").toStringRef() == "cpu");
  CHECK(found.at("counter").toGenericDict().at(80).toInt() == 2);
  CHECK(found.at("no_counter").toGenericDict().empty());
  CHECK(found.at("one").toGenericDict().at("entry").toInt() == 1);
  CHECK(found.at("ordered").toGenericDict().at("one").toInt() == 1);
}

TEST_CASE("the weights in a checkpoint of Lightning's Trainer are loaded", "[python_files]") {
  const auto path = kPythonGolden / "trainer.ckpt";
  const auto root = read_pt(path).toGenericDict();
  CHECK(root.at("epoch").toInt() == 1);
  CHECK(root.at("global_step").toInt() == 2);
  CHECK(root.at("hyper_parameters").toGenericDict().at("width").toInt() == 4);
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
  const auto weights = read_weights(path);
  CHECK(weights.front().first == "model.0.weight");
  load_weights(*model, weights, path);
  CHECK(model->named_parameters()["0.weight"].equal(weights.front().second));
  CHECK(model->named_buffers()["1.num_batches_tracked"].item<std::int64_t>() == 2);
}

TEST_CASE("a module with a part called model keeps its names", "[python_files]") {
  const TempDir folder;
  torch::nn::Sequential model({{"model", torch::nn::Linear(4, 3).ptr()}});
  write_pt(folder.path() / "a.pt", state_dict(*model));
  CHECK_NOTHROW(load_weights(*model, read_weights(folder.path() / "a.pt"), "a.pt"));
  torch::nn::Linear other(5, 3);
  CHECK_THROWS_WITH(load_weights(*other, read_weights(folder.path() / "a.pt"), "a.pt"),
                    ContainsSubstring("missing \"weight\""));
}

TEST_CASE("averaged weights are read from a checkpoint as torch's AveragedModel keeps them",
          "[python_files]") {
  const auto weights = read_weights(kPythonGolden / "averaged.pt", WeightsOf::kAverages);
  REQUIRE(weights.size() == 2);
  CHECK(weights[0].first == "embed.weight");
  CHECK(weights[1].second.equal(torch::arange(15, torch::kFloat).view({5, 3})));
  CHECK_THROWS_WITH(
      read_weights(kStateDicts / "state_dict.pt", WeightsOf::kAverages),
      ContainsSubstring("holds no averaged weights, expected a checkpoint of a run with --ema"));
}

TEST_CASE("a tied weight that safetensors left out is there again", "[python_files]") {
  const auto file = read_safetensors(kPythonGolden / "tied.safetensors");
  CHECK(file.metadata.at("head.weight") == "embed.weight");
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].first == "embed.weight");
  CHECK(file.tensors[1].first == "head.weight");
  CHECK(file.tensors[1].second.is_alias_of(file.tensors[0].second));
  CHECK(file.tensors[1].second.equal(torch::arange(15, torch::kFloat).view({5, 3})));
}

TEST_CASE("a released checkpoint of torch's older format is read", "[python_files]") {
  const auto path = resnet20();
  const auto root = read_pt(path).toGenericDict();
  CHECK(root.at("best_prec1").toDouble() > 91);
  const auto weights = read_weights(path);
  CHECK(weights.front().first == "conv1.weight");
  CHECK(weights.front().second.sizes() == at::IntArrayRef({16, 3, 3, 3}));
  std::int64_t numbers = 0;
  for (const auto& [name, tensor] : weights) numbers += tensor.numel();
  CHECK(numbers == 271'098);
}
