#include <ddprun/train/state/state_dict_file.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/optimizer_state.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::serialize;
using namespace ddprun::train;
using namespace std::string_literals;

namespace {

const std::filesystem::path kStateDictGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "state_dict_file";

/// What scripts/make_golden.py's small_module() is.
torch::nn::Sequential small_module() {
  return torch::nn::Sequential({{"conv", torch::nn::Conv2d(1, 2, 3).ptr()},
                                {"bn", torch::nn::BatchNorm2d(2).ptr()},
                                {"fc", torch::nn::Linear(4, 3).ptr()}});
}

/// The i-th element of the k-th tensor is k + i / 16; integers are rounded towards 0.
torch::Tensor golden_tensor(std::size_t k, const torch::Tensor& like) {
  const auto values = static_cast<double>(k) + torch::arange(like.numel(), torch::kDouble) / 16;
  return values.view(like.sizes()).to(like.scalar_type());
}

void check_golden(const StateDict& weights) {
  REQUIRE(weights.size() == 9);
  CHECK(weights[0].first == "conv.weight");
  CHECK(weights[6].first == "bn.num_batches_tracked");
  CHECK(weights[8].first == "fc.bias");
  for (std::size_t k = 0; k < weights.size(); ++k) {
    CAPTURE(weights[k].first);
    CHECK(weights[k].second.equal(golden_tensor(k, weights[k].second)));
  }
}

void write_safetensors(const std::filesystem::path& path, const std::string& header,
                       const std::string& data) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  write_file_atomic(path, length + header + data);
}

}  // namespace

TEST_CASE("read_weights reads every form in which Python saves a state_dict", "[state_dict_file]") {
  for (const char* name : {"state_dict.pt", "plain_dict.pt", "ddp.pt", "lightning.ckpt"}) {
    CAPTURE(name);
    check_golden(read_weights(kStateDictGolden / name));
  }
  CHECK(read_weights(kStateDictGolden / "parameters.pt").size() == 6);
}

TEST_CASE("read_weights reads safetensors", "[state_dict_file]") {
  check_golden(read_weights(kStateDictGolden / "weights.safetensors"));
}

TEST_CASE("read_weights finds the model in a checkpoint of ours", "[state_dict_file]") {
  const TempDir folder;
  auto module = small_module();
  auto root = make_dict();
  root.insert("epoch", 3);
  root.insert("model", state_dict(*module));
  write_pt(folder.path() / "a.pt", root);
  const auto weights = read_weights(folder.path() / "a.pt");
  REQUIRE(weights.size() == 9);
  CHECK(weights[0].second.equal(module->named_parameters()["conv.weight"]));
}

TEST_CASE("read_weights refuses a safetensors file that breaks a rule of the format", "[state_dict_file]") {
  const TempDir folder;
  const auto path = folder.path() / "a.safetensors";
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const auto refused = [&](const std::string& header, const std::string& data, const char* why) {
    CAPTURE(header);
    write_safetensors(path, header, data);
    CHECK_THROWS_WITH(read_weights(path), ContainsSubstring(why));
  };
  const std::string eight(8, '\1');
  refused(R"({"a":)" + entry("F32", "[3]", "[0,8]") + "}", eight, "which its shape does not");
  refused(R"({"a":)" + entry("F32", "[1]", "[4,8]") + "}", eight, "a hole or an overlap");
  refused(R"({"a":)" + entry("F32", "[2]", "[0,8]") + R"(,"b":)" + entry("F32", "[1]", "[4,8]") + "}", eight,
          "a hole or an overlap");
  refused(R"({"a":)" + entry("F32", "[1]", "[0,4]") + "}", eight, "but 8 follow");
  refused(R"({"a":)" + entry("F32", "[4]", "[0,16]") + "}", eight, "but 8 follow");
  refused(R"({"a":)" + entry("F4", "[8]", "[0,8]") + "}", eight, "dtype \"F4\"");
  refused(R"({"__metadata__":{"a":1},"a":)" + entry("U8", "[8]", "[0,8]") + "}", eight,
          "metadata \"a\" is not text");
  refused(R"({"__metadata__":[],"a":)" + entry("U8", "[8]", "[0,8]") + "}", eight,
          "metadata is not a JSON object");
  refused(R"({"a":)" + entry("BOOL", "[8]", "[0,8]") + "}", std::string(8, '\2'), "neither 0 nor 1");
  refused(R"({"a":)" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}", "",
          "which its shape does not");
  refused(R"({"a":)" + entry("F32", "[-2]", "[0,8]") + "}", eight, "proper shape");
  refused(R"({"a":)" + entry("F32", "[2.0]", "[0,8]") + "}", eight, "proper shape");
  refused(R"({"a":)" + entry("F32", "[2]", "[8,0]") + "}", eight, "proper shape");
  refused(R"({"a":[]})", eight, "proper shape");
  refused("{", eight, "its header is not JSON");
  refused("{\"a\":" + std::string(1'000'000, '['), eight, "its header is nested deeper than 4 levels");
  refused("{}", "", "holds no tensors");
}

TEST_CASE("read_weights refuses every truncation of a safetensors file", "[state_dict_file]") {
  const TempDir folder;
  const auto bytes = read_file(kStateDictGolden / "weights.safetensors");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    write_file_atomic(folder.path() / "a", bytes.substr(0, size));
    REQUIRE_THROWS_AS(read_weights(folder.path() / "a"), IoError);
  }
}

TEST_CASE("load_weights copies parameters and buffers by name", "[state_dict_file]") {
  auto module = small_module();
  const auto weight = module->named_parameters()["conv.weight"];
  load_weights(*module, read_weights(kStateDictGolden / "state_dict.pt"), "a.pt");
  CHECK(weight.equal(golden_tensor(0, weight)));
  CHECK(weight.requires_grad());
  CHECK(module->named_buffers()["bn.running_var"][1].item<float>() == 5 + 1.F / 16);
  CHECK(module->named_buffers()["bn.num_batches_tracked"].item<std::int64_t>() == 6);
}

TEST_CASE("load_weights names what does not fit and copies nothing", "[state_dict_file]") {
  auto module = small_module();
  const auto before = module->named_parameters()["conv.weight"].clone();
  auto weights = read_weights(kStateDictGolden / "state_dict.pt");
  weights.back() = {"head.bias", torch::ones({5})};
  weights[7].second = torch::ones({3, 5});
  CHECK_THROWS_WITH(
      load_weights(*module, weights, "dir/a.pt"),
      "dir/a.pt: its tensors do not fit the model: missing \"fc.bias\" [3]; with a different shape "
      "\"fc.weight\" [3, 5], expected [3, 4]; unexpected \"head.bias\" [5]");
  CHECK(module->named_parameters()["conv.weight"].equal(before));
  CHECK_THROWS_WITH(load_weights(*module, {}, "a.pt"), ContainsSubstring("and 6 more"));
}

TEST_CASE("state_dict has Python's names in Python's order", "[state_dict_file]") {
  auto module = small_module();
  const auto expected = read_weights(kStateDictGolden / "state_dict.pt");
  const auto found = state_dict(*module);
  REQUIRE(found.size() == expected.size());
  std::size_t k = 0;
  for (const auto& item : found) CHECK(item.key().toStringRef() == expected[k++].first);
  CHECK_FALSE(found.at("fc.bias").toTensor().requires_grad());
}

TEST_CASE("optimizer_state_dict has Python's layout", "[optimizer_state]") {
  auto module = small_module();
  torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.0));
  for (auto& parameter : module->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  adam.step();
  const auto found = optimizer_state_dict(adam).toGenericDict();
  const auto expected = read_pt(kStateDictGolden / "adam.pt").toGenericDict();
  for (const auto& item : expected.at("state").toGenericDict())
    for (const auto& entry : item.value().toGenericDict()) {
      const auto ours =
          found.at("state").toGenericDict().at(item.key()).toGenericDict().at(entry.key()).toTensor();
      CHECK(ours.scalar_type() == entry.value().toTensor().scalar_type());
      CHECK(ours.allclose(entry.value().toTensor(), 1e-6, 0));
    }
  const auto ours = found.at("param_groups").toList().get(0).toGenericDict();
  const auto theirs = expected.at("param_groups").toList().get(0).toGenericDict();
  REQUIRE(ours.size() == theirs.size());
  for (const auto& item : theirs) {
    CAPTURE(item.key().toStringRef());
    if (item.key() != c10::IValue("weight_decay")) CHECK(same(ours.at(item.key()), item.value()));
  }
}

TEST_CASE("Python's Module and Adam load what state_dict and optimizer_state_dict gave",
          "[state_dict_file]") {
  const TempDir folder;
  auto module = small_module();
  load_weights(*module, read_weights(kStateDictGolden / "state_dict.pt"), "golden");
  torch::optim::Adam adam(module->parameters(),
                          torch::optim::AdamOptions(0.25).betas({0.8, 0.9}).amsgrad(true));
  for (auto& parameter : module->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  adam.step();
  auto root = make_dict();
  root.insert("model", state_dict(*module));
  root.insert("optimizer", optimizer_state_dict(adam));
  write_pt(folder.path() / "a.pt", root);
  check_python(folder.path(), "torch",
               R"(
import torch
from collections import OrderedDict
m = torch.nn.Sequential(OrderedDict(conv=torch.nn.Conv2d(1, 2, 3), bn=torch.nn.BatchNorm2d(2), fc=torch.nn.Linear(4, 3)))
d = torch.load('a.pt')
assert list(d['model']) == list(m.state_dict())
m.load_state_dict(d['model'])
golden = torch.load(')" +
                   (kStateDictGolden / "state_dict.pt").string() +
                   R"(')
assert all(torch.equal(t, golden[n]) for n, t in m.state_dict().items())
adam = torch.optim.Adam(m.parameters())
adam.load_state_dict(d['optimizer'])
group = adam.state_dict()['param_groups'][0]
assert group['lr'] == 0.25 and group['betas'] == (0.8, 0.9) and group['params'] == list(range(6)), group
assert adam.state[m.fc.bias]['step'].item() == 1 and adam.state[m.fc.bias]['max_exp_avg_sq'].shape == (3,)
for p in m.parameters(): p.grad = torch.ones_like(p)
adam.step()
)");
}
