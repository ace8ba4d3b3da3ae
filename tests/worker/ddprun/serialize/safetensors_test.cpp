#include <ddprun/serialize/safetensors.h>

#include <torch/types.h>

#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::serialize;

namespace {

NamedTensors every_kind() {
  NamedTensors tensors;
  for (const auto dtype :
       {torch::kByte, torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong,
        torch::kInt, torch::kShort, torch::kChar, torch::kBool, torch::kUInt16, torch::kUInt32,
        torch::kUInt64, torch::kComplexFloat, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2})
    tensors.emplace_back(c10::toString(dtype), torch::tensor({0, 1, 1}).to(dtype));
  tensors.emplace_back("scalar", torch::tensor(2.5));
  tensors.emplace_back("no elements", torch::empty({0, 3}));
  tensors.emplace_back("transposed", torch::arange(6).view({2, 3}).t());
  tensors.emplace_back(
      "gr\xc3\xb6\xc3\x9f"
      "e \"1\"",
      torch::ones({2, 1}));
  return tensors;
}

/// A layer whose weight has two names, and a view that is not the same.
NamedTensors tied() {
  const auto weight = torch::arange(6, torch::kFloat).view({2, 3});
  return {{"head.weight", weight}, {"embed.weight", weight}, {"part", weight.slice(0, 0, 1)}};
}

}  // namespace

TEST_CASE("read_safetensors gives back every kind of tensor that write_safetensors wrote", "[safetensors]") {
  const TempDir folder;
  const auto path = folder.path() / "a.safetensors";
  const auto written = every_kind();
  write_safetensors(path, written, {{"note", "one"}});
  const auto found = read_safetensors(path);
  CHECK(found.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"note", "one"}});
  REQUIRE(found.tensors.size() == written.size());
  const std::map<std::string, at::Tensor> by_name(found.tensors.begin(), found.tensors.end());
  for (const auto& [name, tensor] : written) {
    CAPTURE(name);
    const auto& read = by_name.at(name);
    CHECK(read.scalar_type() == tensor.scalar_type());
    CHECK(read.sizes() == tensor.sizes());
    CHECK(read.flatten().view(torch::kByte).equal(tensor.flatten().view(torch::kByte)));
  }
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("write_safetensors writes a tied tensor once, and both names are read", "[safetensors]") {
  const TempDir folder;
  const auto path = folder.path() / "a.safetensors";
  write_safetensors(path, tied());
  const auto found = read_safetensors(path);
  CHECK(found.metadata.at("head.weight") == "embed.weight");
  REQUIRE(found.tensors.size() == 3);
  CHECK(found.tensors.back().first == "head.weight");
  const std::map<std::string, at::Tensor> by_name(found.tensors.begin(), found.tensors.end());
  CHECK(by_name.at("head.weight").is_alias_of(by_name.at("embed.weight")));
  CHECK(by_name.at("head.weight").equal(tied()[0].second));
  CHECK(by_name.at("part").equal(torch::arange(3, torch::kFloat).view({1, 3})));
}

TEST_CASE("write_safetensors refuses what the format cannot hold", "[safetensors]") {
  const TempDir folder;
  const auto path = folder.path() / "a.safetensors";
  const auto one = torch::ones({1});
  CHECK_THROWS_WITH(write_safetensors(path, {{"a", one.to(torch::kComplexDouble)}}),
                    "tensor \"a\" is of a kind that a .safetensors file cannot hold: ComplexDouble");
  CHECK_THROWS_AS(write_safetensors(path, {{"a", torch::eye(2).to_sparse()}}), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, {{"a", at::Tensor()}}), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, {{"a", one}, {"a", one}}), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, {{"__metadata__", one}}), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, {{"note", one}}, {{"note", "a"}}), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, {{"\xff", one}}), std::invalid_argument);
  CHECK(fs::is_empty(folder.path()));
  CHECK_THROWS_WITH(write_safetensors(folder.path() / "none" / "a", {{"a", one}}),
                    ContainsSubstring("none/a: cannot create: No such file"));
}

TEST_CASE("the safetensors package reads what write_safetensors wrote, and the other way round",
          "[safetensors]") {
  const TempDir folder;
  write_safetensors(folder.path() / "a.safetensors", every_kind(), {{"note", "one"}});
  const auto both = tied();
  write_safetensors(folder.path() / "tied.safetensors", {both[0], both[1]});
  check_python(folder.path(), "safetensors", R"(
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
d = load_file('a.safetensors')
names = dict(Float='float32', Double='float64', Half='float16', BFloat16='bfloat16', Long='int64', Int='int32',
             Short='int16', Char='int8', Byte='uint8', Bool='bool', UInt16='uint16', UInt32='uint32', UInt64='uint64',
             ComplexFloat='complex64', Float8_e4m3fn='float8_e4m3fn', Float8_e5m2='float8_e5m2')
for ours, theirs in names.items():
    assert d[ours].dtype == getattr(torch, theirs) and d[ours].to(torch.complex64).tolist() == [0, 1, 1], ours
assert d['scalar'].shape == () and d['scalar'].item() == 2.5 and d['no elements'].shape == (0, 3)
assert torch.equal(d['transposed'], torch.arange(6).view(2, 3).t()) and d['größe "1"'].shape == (2, 1)
with safe_open('a.safetensors', 'pt') as f:
    assert f.metadata() == {'format': 'pt', 'note': 'one'}
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(2, 3)
        self.head = torch.nn.Linear(3, 2, bias=False)
        self.head.weight = self.embed.weight
model = Tied()
assert load_model(model, 'tied.safetensors', strict=True) == (set(), [])
assert torch.equal(model.head.weight, torch.arange(6.0).view(2, 3))
save_file({'x': torch.arange(4, dtype=torch.bfloat16)}, 'theirs.safetensors', {'by': 'python'})
)");
  const auto theirs = read_safetensors(folder.path() / "theirs.safetensors");
  CHECK(theirs.metadata.at("by") == "python");
  CHECK(theirs.tensors.at(0).second.equal(torch::arange(4).to(torch::kBFloat16)));
}
