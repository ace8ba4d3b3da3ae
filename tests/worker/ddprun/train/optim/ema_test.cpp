#include <ddprun/train/optim/optimization.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <stdexcept>

#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"

using namespace ddprun;
using test::ContainsSubstring;
using torch::Tensor;
using train::Ema;
namespace nn = torch::nn;

namespace {

nn::Sequential make_module() { return nn::Sequential(nn::Linear(3, 2), nn::BatchNorm1d(2)); }

void set_weights(nn::Module& module, const c10::impl::GenericDict& weights) {
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) item.value().copy_(weights.at(item.key()).toTensor());
  for (auto& item : module.named_buffers()) item.value().copy_(weights.at(item.key()).toTensor());
}

bool same_average(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && (a - b).abs().max().to(torch::kFloat64).item<double>() < 1e-6;
}

Tensor ones(double value) { return torch::full({2}, value); }

}  // namespace

TEST_CASE("averaged weights are PyTorch's, buffers too, and have its state dict", "[ema]") {
  const auto golden = serialize::read_pt(DDPRUN_GOLDEN_DIR "/ema/averages.pt").toGenericDict();
  for (const bool average_buffers : {false, true}) {
    const auto expected = golden.at(average_buffers ? "averaged_buffers" : "copied_buffers").toGenericDict();
    auto module = make_module();
    Ema ema(*module, {.decay = 0.9, .average_buffers = average_buffers});
    for (const c10::IValue& weights : golden.at("weights").toList()) {
      set_weights(*module, weights.toGenericDict());
      ema.update();
    }
    const auto state = ema.state_dict();
    REQUIRE(state.size() == expected.size());
    for (const auto& item : expected) {
      CAPTURE(item.key().toStringRef());
      CHECK(same_average(state.at(item.key()).toTensor(), item.value().toTensor()));
    }
    Ema loaded(*module, {.decay = 0.9, .average_buffers = average_buffers});
    loaded.load_state_dict(expected);
    CHECK(loaded.updates() == 5);
    ema.update();
    loaded.update();
    for (std::size_t i = 0; i < ema.averages().size(); ++i)
      CHECK(same_average(ema.averages()[i].second, loaded.averages()[i].second));
  }
}

TEST_CASE("averages take the weights' place for as long as wanted", "[ema]") {
  const auto tensor = ones(1).requires_grad_();
  const auto* memory = tensor.data_ptr();
  Ema ema({{"weight", tensor}, {"tied", tensor}}, {}, {.decay = 0.5});
  {
    const auto nothing = ema.swap_in();  // no average yet
    CHECK(torch::equal(tensor, ones(1)));
  }
  ema.update();
  {
    const torch::NoGradGuard no_grad;
    tensor.fill_(3);
  }
  ema.update();
  {
    const auto swapped = ema.swap_in();
    CHECK(torch::equal(tensor, ones(2)));
    CHECK(torch::equal(ema.averages()[1].second, ones(2)));
    CHECK_THROWS_AS(ema.update(), std::logic_error);
    CHECK_THROWS_AS(ema.swap_in(), std::logic_error);
  }
  CHECK(torch::equal(tensor, ones(3)));
  CHECK(torch::equal(ema.averages()[0].second, ones(2)));
  CHECK(ema.averages()[0].second.is_alias_of(ema.averages()[1].second));  // kept once
  CHECK(tensor.data_ptr() == memory);
  CHECK(tensor.requires_grad());
}

TEST_CASE("a decay out of range and a state of another module are refused", "[ema]") {
  CHECK_THROWS_AS(Ema({}, {}, {.decay = 1.5}), std::invalid_argument);
  Ema ema({{"a", ones(1)}}, {}, {});
  CHECK_THROWS_WITH(ema.load_state_dict(Ema({{"b", ones(1)}}, {}, {}).state_dict()),
                    ContainsSubstring("the weight average: expected 'module.a', got none"));
  CHECK_THROWS_WITH(ema.load_state_dict(Ema({{"a", torch::zeros(3)}}, {}, {}).state_dict()),
                    ContainsSubstring("'module.a': expected shape [2], got [3]"));
}
