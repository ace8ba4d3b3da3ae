#include "worker/models/classifiers.h"

#include <torch/nn/functional/loss.h>

#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/python.h"
#include "tests/worker/ddprun/ddp/parity_models.h"

using ddprun::models::MnistCnn;
using ddprun::test::check_digest;
using ddprun::test::read_golden;

// The same bits on processors with the same instructions; elsewhere the last bit of a float may differ.
constexpr double kRounding = 1e-7;

TEST_CASE("MNIST CNN draws PyTorch's initial weights from the same seed, under its names", "[mnist_cnn]") {
  const auto golden = read_golden("mnist_cnn/batch.json");
  torch::manual_seed(7);
  MnistCnn model;
  std::int64_t count = 0;
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    REQUIRE(golden["weights"].contains(item.key()));
    check_digest(item.value(), golden["weights"][item.key()], kRounding);
    count += item.value().numel();
  }
  CHECK(model->named_parameters().size() == golden["weights"].size());
  CHECK(count == 1199882);
}

TEST_CASE("MNIST CNN gives PyTorch's output and every gradient with the same weights", "[mnist_cnn]") {
  const auto golden = read_golden("mnist_cnn/batch.json");
  torch::manual_seed(7);
  MnistCnn model;
  torch::manual_seed(11);
  const auto images = torch::randn({4, 1, 28, 28});
  check_digest(images, golden["images"], kRounding);
  model->eval();
  const auto output = model->forward(images);
  for (int row = 0; row < 4; ++row)
    for (int k = 0; k < 10; ++k)
      CHECK(output[row][k].item<double>() ==
            ddprun::test::Approx(golden["output"][row][k].get<double>()).margin(1e-5));
  const auto loss = torch::nll_loss(output, torch::tensor({3, 0, 9, 3}, torch::kInt64));
  CHECK(loss.item<double>() == ddprun::test::Approx(golden["loss"].get<double>()).epsilon(1e-6));
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    check_digest(item.value().grad(), golden["gradients"][item.key()], 1e-6);
  }
}

TEST_CASE("MNIST CNN drops nothing with dropout 0 and something by default", "[mnist_cnn]") {
  const auto images = torch::ones({2, 1, 28, 28});
  MnistCnn without(0.0), with;
  CHECK(without->forward(images).equal(without->forward(images)));
  CHECK_FALSE(with->forward(images).equal(with->forward(images)));
}

using ddprun::models::ResNet18;
using ddprun::models::Stem;

namespace {

std::int64_t parameters_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

/// A digest here is [sum, norm].
void check_sum_and_norm(const torch::Tensor& tensor, const nlohmann::json& digest, double tolerance) {
  const auto wide = tensor.detach().to(torch::kFloat64);
  const double norm = digest[1], scale = norm * std::sqrt(static_cast<double>(wide.numel()));
  CHECK(std::abs(wide.norm().item<double>() - norm) <= tolerance * norm);
  CHECK(std::abs(wide.sum().item<double>() - digest[0].get<double>()) <= tolerance * scale);
}

}  // namespace

TEST_CASE("ResNet-18 draws torchvision's initial weights from the same seed, under its names", "[resnet]") {
  const auto golden = read_golden("resnet/batch.json")["initial"];
  torch::manual_seed(7);
  ResNet18 model(10);
  CHECK(model->named_parameters().size() == golden.size());
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    REQUIRE(golden.contains(item.key()));
    check_sum_and_norm(item.value(), golden[item.key()], 1e-6);
  }
}

TEST_CASE("ResNet-18 has torchvision's number of parameters, fewer with the stem for CIFAR", "[resnet]") {
  CHECK(parameters_of(*ResNet18(10)) == 11181642);
  CHECK(parameters_of(*ResNet18(10, Stem::kCifar)) == 11173962);
  CHECK(ResNet18(10, Stem::kCifar)->forward(torch::zeros({2, 3, 32, 32})).sizes() ==
        torch::IntArrayRef{2, 10});
}

TEST_CASE("ResNet-18 gives torchvision's output, gradients and statistics with the same weights",
          "[resnet]") {
  const auto golden = read_golden("resnet/batch.json");
  ResNet18 model(10);
  model->to(torch::kFloat64);
  ddprun::test::fill_by_formula(*model);
  const auto images = 2 * ddprun::test::formula("image", {2, 3, 32, 32});
  const auto output = model->forward(images);
  for (int row = 0; row < 2; ++row)
    for (int k = 0; k < 10; ++k)
      CHECK(output[row][k].item<double>() ==
            ddprun::test::Approx(golden["output"][row][k].get<double>()).epsilon(1e-9));
  torch::nn::functional::cross_entropy(output, torch::tensor({3, 7}, torch::kInt64)).backward();
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    check_sum_and_norm(item.value().grad(), golden["gradients"][item.key()], 1e-9);
  }
  CHECK(model->named_buffers().size() == golden["buffers"].size());
  for (const auto& item : model->named_buffers()) {
    CAPTURE(item.key());
    check_sum_and_norm(item.value(), golden["buffers"][item.key()], 1e-9);
  }
}

TEST_CASE("ResNet-18 loads what torchvision's model saved, and gives its output", "[resnet]") {
  const ddprun::TempDir dir;
  ddprun::test::check_python(dir.path(), "torchvision", R"(
import torch, torchvision
torch.manual_seed(3)
model = torchvision.models.resnet18(num_classes=10)
images = torch.randn(4, 3, 64, 64)
model(images)  # in training: batch norm's statistics are no longer those of a new model
torch.save(model.state_dict(), "weights.pt")
torch.save({"images": images, "output": model.eval()(images).detach()}, "batch.pt")
)");
  ResNet18 model(10);
  const auto path = dir.path() / "weights.pt";
  ddprun::train::load_weights(*model, ddprun::train::read_weights(path), path);
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto batch = ddprun::serialize::read_pt(dir.path() / "batch.pt").toGenericDict();
  const auto expected = batch.at("output").toTensor();
  CHECK((model->forward(batch.at("images").toTensor()) - expected).abs().max().item<double>() <=
        1e-5 * expected.abs().max().item<double>());
}
