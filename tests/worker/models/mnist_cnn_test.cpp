#include "worker/models/mnist_cnn.h"

#include "tests/support/catch.h"
#include "tests/support/golden.h"

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
