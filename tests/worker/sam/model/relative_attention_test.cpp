#include "worker/sam/model/vision_encoder.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker/sam/sam_support.h"

using namespace ddprun;
using ddprun::test::relative_difference;

namespace {

/// Query, key, value, by_row and by_column of a grid, with gradients.
std::vector<torch::Tensor> make_inputs(std::int64_t batches, std::int64_t queries, std::int64_t rows,
                                       std::int64_t columns) {
  torch::manual_seed(7);
  const auto make = [&](std::int64_t length, std::int64_t width) {
    return torch::randn({batches, length, width}, torch::kDouble).requires_grad_();
  };
  return {make(queries, 6), make(rows * columns, 6), make(rows * columns, 6), make(queries, rows),
          make(queries, columns)};
}

torch::Tensor attend(const std::vector<torch::Tensor>& in) {
  return sam::relative_attention(in[0], in[1], in[2], in[3], in[4]);
}

/// By the formula, with the bias and the probabilities of all pairs.
torch::Tensor attend_at_once(const std::vector<torch::Tensor>& in) {
  const auto bias = (in[3].unsqueeze(3) + in[4].unsqueeze(2)).flatten(2);
  const auto logits = in[0].bmm(in[1].transpose(1, 2)) / std::sqrt(static_cast<double>(in[0].size(2)));
  return (logits + bias).softmax(2).bmm(in[2]);
}

void check_equal(const std::vector<torch::Tensor>& in) {
  const double tolerance = 1e-12;
  const auto found = attend(in), expected = attend_at_once(in);
  CHECK(found.allclose(expected, tolerance, tolerance));
  const auto weights = torch::randn_like(expected);
  const auto gradients = torch::autograd::grad({found}, in, {weights});
  const auto expected_gradients = torch::autograd::grad({expected}, in, {weights});
  for (std::size_t i = 0; i < in.size(); ++i) {
    CAPTURE(i);
    CHECK(gradients[i].allclose(expected_gradients[i], tolerance, tolerance));
  }
}

}  // namespace

TEST_CASE("attention with relative positions in blocks is what it is at once", "[sam]") {
  torch::set_num_threads(1);
  check_equal(make_inputs(2, 7, 3, 5));
  check_equal(make_inputs(0, 7, 3, 5));
  check_equal(make_inputs(2, 1030, 32, 32));  // several blocks of one batch's queries
  check_equal(make_inputs(19, 200, 16, 16));  // blocks of several batches
}

TEST_CASE("attention with relative positions rounds little in half precision", "[sam]") {
  const auto type = GENERATE(torch::kBFloat16, torch::kHalf);
  const double tolerance = type == torch::kBFloat16 ? 0.006 : 0.001;
  torch::set_num_threads(1);  // several blocks
  auto inputs = make_inputs(2, 1030, 32, 32), in = inputs;
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = inputs[i].detach().to(type).requires_grad_();
    inputs[i] = in[i].detach().to(torch::kDouble).requires_grad_();
  }
  const auto found = attend(in), expected = attend_at_once(inputs);
  CHECK(relative_difference(found, expected) < tolerance);
  const auto weights = torch::randn_like(found);
  const auto gradients = torch::autograd::grad({found}, in, {weights});
  const auto exact = torch::autograd::grad({expected}, inputs, {weights.to(torch::kDouble)});
  for (std::size_t i = 0; i < in.size(); ++i) {
    CAPTURE(i, type);
    CHECK(relative_difference(gradients[i], exact[i]) < tolerance);
  }
}
