#include "worker/models/sam/relative_attention.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

/// Query, key, value, by_row and by_column of a grid, with gradients.
std::vector<torch::Tensor> make_inputs(std::int64_t batches, std::int64_t queries, std::int64_t rows,
                                       std::int64_t columns, torch::Dtype dtype) {
  torch::manual_seed(7);
  const auto make = [&](std::int64_t length, std::int64_t width) {
    return torch::randn({batches, length, width}, dtype).requires_grad_();
  };
  return {make(queries, 6), make(rows * columns, 6), make(rows * columns, 6), make(queries, rows),
          make(queries, columns)};
}

torch::Tensor attend(const std::vector<torch::Tensor>& in) {
  return models::relative_attention(in[0], in[1], in[2], in[3], in[4]);
}

/// By the formula, with the bias and the probabilities of all pairs.
torch::Tensor attend_at_once(const std::vector<torch::Tensor>& in) {
  const auto bias = (in[3].unsqueeze(3) + in[4].unsqueeze(2)).flatten(2);
  const auto logits = in[0].bmm(in[1].transpose(1, 2)) / std::sqrt(static_cast<double>(in[0].size(2)));
  return (logits + bias).softmax(2).bmm(in[2]);
}

void check_equal(const std::vector<torch::Tensor>& in, double tolerance) {
  const auto found = attend(in), expected = attend_at_once(in);
  CHECK(found.allclose(expected, tolerance, tolerance));
  const auto weights = torch::randn_like(expected);
  const auto gradients = torch::autograd::grad({found}, in, {weights});
  const auto expected_gradients = torch::autograd::grad({expected}, in, {weights});
  for (std::size_t i = 0; i < in.size(); ++i) {
    CAPTURE(i);
    CHECK(gradients[i].dtype() == in[i].dtype());
    CHECK(gradients[i].allclose(expected_gradients[i], tolerance, tolerance));
  }
}

}  // namespace

TEST_CASE("attention with relative positions in blocks is what it is at once", "[sam]") {
  check_equal(make_inputs(2, 7, 3, 5, torch::kDouble), 1e-12);
  check_equal(make_inputs(2, 1030, 32, 32, torch::kDouble), 1e-12);  // several blocks of one batch's queries
  check_equal(make_inputs(19, 200, 16, 16, torch::kDouble), 1e-12);  // blocks of several batches
  check_equal(make_inputs(2, 1030, 32, 32, torch::kBFloat16), 0.05);
}
