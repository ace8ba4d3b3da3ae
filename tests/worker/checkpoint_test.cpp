#include "worker/train/checkpoint.h"

#include <torch/optim/adam.h>

#include "common/errors.h"
#include "common/files.h"
#include "tests/support/catch.h"
#include "worker/models/mnist_cnn.h"
#include "worker/serialize/pt_file.h"
#include "worker/train/optimizer_state.h"
#include "worker/train/state_dict_file.h"

using namespace ddprun;

TEST_CASE("a checkpoint holds the whole state, and its weights can be loaded again", "[checkpoint]") {
  const TempDir dir;
  const auto path = dir.path() / "checkpoints" / "last.pt";
  models::MnistCnn model, other;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  torch::nll_loss(model->forward(torch::randn({2, 1, 28, 28})), torch::tensor({1, 2}, torch::kInt64))
      .backward();
  optimizer.step();
  train::save_checkpoint(path, {train::state_dict(*model), train::optimizer_state_dict(optimizer), 4, 99,
                                R"({"task":"mnist","lr":0.001,"dropout":null})"});

  const auto root = serialize::read_pt(path).toGenericDict();
  CHECK(root.at("epoch").toInt() == 4);
  CHECK(root.at("step").toInt() == 99);
  CHECK(root.at("config").toGenericDict().at("task").toStringRef() == "mnist");
  CHECK(root.at("config").toGenericDict().at("dropout").isNone());
  CHECK(root.at("optimizer").toGenericDict().at("state").toGenericDict().size() == 8);

  train::load_weights(*other, train::read_weights(path), path);
  for (const auto& item : model->named_parameters())
    CHECK(item.value().equal(other->named_parameters()[item.key()]));
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path()))
    CHECK(entry.path() == path);  // no temporary file is left
}

TEST_CASE("a checkpoint is written into the working folder too", "[checkpoint]") {
  models::MnistCnn model;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  const TempDir dir;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  CHECK_NOTHROW(train::save_checkpoint(
      "last.pt", {train::state_dict(*model), train::optimizer_state_dict(optimizer), 0, 0}));
  std::filesystem::current_path(before);
  CHECK(std::filesystem::exists(dir.path() / "last.pt"));
}

TEST_CASE("a checkpoint that cannot be written is refused by name", "[checkpoint]") {
  models::MnistCnn model;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  CHECK_THROWS_AS(
      train::save_checkpoint("/dev/null/x/last.pt",
                             {train::state_dict(*model), train::optimizer_state_dict(optimizer), 0, 0, "{}"}),
      IoError);
}
