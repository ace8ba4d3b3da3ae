#include <ddprun/serialize/pt_file.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::serialize;
using ddprun::train::read_weights;
using namespace std::string_literals;

namespace {

const std::filesystem::path kPtGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "state_dict_file";

c10::IValue all_kinds() {
  auto root = make_dict();
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt,
        torch::kShort, torch::kChar, torch::kByte, torch::kBool, torch::kComplexFloat, torch::kComplexDouble})
    root.insert(c10::toString(dtype), torch::tensor({0, 1, 1}).to(dtype));
  root.insert("scalar", torch::tensor(2.5));
  root.insert("no_elements", torch::empty({0, 3}));
  root.insert("transposed", torch::arange(6).view({2, 3}).t());
  root.insert("channels_last", torch::rand({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast));
  root.insert("expanded", torch::ones({1}).expand({3}));
  root.insert("integers", c10::List<std::int64_t>({0, 255, 65536, -3, 5'000'000'000, INT64_MIN, INT64_MAX}));
  root.insert("reals", c10::List<double>({0.5, -1e300}));
  root.insert("constants",
              c10::ivalue::Tuple::create({c10::IValue(), true, false, 0.25, "gr\xc3\xb6\xc3\x9f"}));
  root.insert("empty",
              c10::ivalue::Tuple::create({make_dict(), c10::List<double>(), c10::ivalue::Tuple::create({})}));
  auto inner = c10::impl::GenericDict(c10::IntType::get(), c10::AnyType::get());
  inner.insert(7, "seven");
  root.insert("nested", inner);
  return root;
}

/// Reads a changed copy of a file: refused with IoError that names it, or read as what the file holds.
void check_refused_or_same(const std::filesystem::path& path, const std::string& bytes,
                           const c10::IValue& expected) {
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    const auto found = read_pt(path);  // not in REQUIRE, which would catch
    REQUIRE(same(found, expected));
  } catch (const IoError& error) {
    REQUIRE(std::string(error.what()).starts_with(path.string() + ": "));
    REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
  }
}

}  // namespace

TEST_CASE("read_pt gives back every kind of value that write_pt wrote", "[pt_file]") {
  const TempDir folder;
  const auto root = all_kinds();
  write_pt(folder.path() / "a.pt", root);
  const auto found = read_pt(folder.path() / "a.pt");
  CHECK(same(found, root));
  const auto dict = found.toGenericDict();
  CHECK(dict.at("transposed").toTensor().strides() == at::IntArrayRef({1, 3}));
  CHECK(dict.at("channels_last").toTensor().is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(dict.at("nested").toGenericDict().at(7).toStringRef() == "seven");
}

TEST_CASE("read_pt of some keys reads their tensors, and verifies the others too", "[pt_file]") {
  const TempDir folder;
  const auto path = folder.path() / "state.pt";
  const auto shared = torch::arange(1000);
  auto model = make_dict();
  model.insert("weight", shared);
  model.insert("mask", torch::tensor({true, false}));
  auto root = make_dict();
  root.insert("model", model);
  root.insert("again", shared);
  root.insert("optimizer", torch::full({1000}, 7));
  write_pt(path, root);

  const auto found = read_pt(path, {"model", "missing"}).toGenericDict();
  CHECK(same(found.at("model"), model));
  CHECK(same(found.at("again"), shared));
  CHECK(found.at("optimizer").toTensor().sizes() == torch::IntArrayRef{1000});

  auto bytes = read_file(path);
  const auto sevens = bytes.find("\7\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0"s);
  REQUIRE(sevens != std::string::npos);
  bytes[sevens] = 8;
  std::ofstream(path, std::ios::binary) << bytes;
  CHECK_THROWS_AS(read_pt(path, {"model"}), IoError);
}

TEST_CASE("write_pt keeps tensors that share memory sharing it, and copies small views", "[pt_file]") {
  const TempDir folder;
  const auto base = torch::arange(1000, torch::kFloat);
  auto root = make_dict();
  root.insert("base", base);
  root.insert("slice", base.slice(0, 10, 20));
  write_pt(folder.path() / "shared.pt", root);
  const auto found = read_pt(folder.path() / "shared.pt").toGenericDict();
  found.at("base").toTensor()[10] = -1;
  CHECK(found.at("slice").toTensor()[0].item<float>() == -1);

  REQUIRE(root.erase("base") == 1);
  write_pt(folder.path() / "view.pt", root);
  CHECK(same(read_pt(folder.path() / "view.pt"), root));
  CHECK(std::filesystem::file_size(folder.path() / "view.pt") < 2000);

  root.insert("other dtype", base.view(torch::kInt));
  root.insert("same memory", base);
  write_pt(folder.path() / "dtypes.pt", root);
  CHECK(same(read_pt(folder.path() / "dtypes.pt"), root));
}

TEST_CASE("write_pt refuses what Python could not read", "[pt_file]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  CHECK_THROWS_WITH(write_pt(path, torch::ones({2}).to(torch::kUInt16)),
                    "a tensor of UInt16 cannot be written to a .pt file");
  CHECK_THROWS_AS(write_pt(path, c10::Device("cpu")), std::invalid_argument);
  CHECK_THROWS_AS(write_pt(path, torch::eye(3).to_sparse()), std::invalid_argument);
  auto cycle = c10::impl::GenericList(c10::AnyType::get());
  cycle.push_back(cycle);
  CHECK_THROWS_AS(write_pt(path, cycle), std::invalid_argument);
  cycle.clear();
  CHECK(std::filesystem::is_empty(folder.path()));
  write_pt(path, "\xff is no UTF-8");
  CHECK(read_pt(path).toStringRef() == "\xef\xbf\xbd is no UTF-8");
}

TEST_CASE("write_pt leaves the old file when the disk is full or the folder is missing", "[pt_file]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  write_pt(path, 1);
  CHECK_THROWS_WITH(
      write_pt(folder.path() / "no" / "a.pt", 1),
      ContainsSubstring((folder.path() / "no" / "a.pt").string() + ": cannot create: No such file"));
  // In a child: a limit on the file's size stands for the full disk.
  // The tensors are made before: after a fork OpenMP's threads are gone.
  const std::vector<torch::Tensor> tensors = {torch::ones({900}), torch::ones({100'000})};
  const auto child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    for (const auto& tensor : tensors) {
      try {
        write_pt(path, tensor);
        ::_exit(1);
      } catch (const IoError& error) {
        if (error.error_number != EFBIG || error.path != path) ::_exit(2);
      } catch (...) {
        ::_exit(3);
      }
    }
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(read_pt(path).toInt() == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("read_pt reads what Python's pickles hold beside tensors", "[pt_file]") {
  const auto values = read_pt(kPtGolden / "values.pt").toGenericDict();
  const std::vector<std::int64_t> integers = {
      0,          255,           256,          65535,         65536,     -1,
      2147483647, -2147483648LL, 2147483648LL, 5'000'000'000, INT64_MIN, INT64_MAX};
  CHECK(values.at("integers").toList().vec() == std::vector<c10::IValue>(integers.begin(), integers.end()));
  CHECK(same(values.at("size"), c10::ivalue::Tuple::create({2, 3})));
  CHECK(values.at("dtype").toStringRef() == "torch.bfloat16");
  CHECK(values.at("set").toList().get(0) == c10::IValue(7));
  CHECK(values.at("tuples").toTupleRef().elements()[3].toTupleRef().elements()[3].toInt() == 4);
  CHECK(values.at("constants").toList().get(4).toDouble() == std::numeric_limits<double>::infinity());
  CHECK(values.at("text").toStringRef() ==
        "gr\xc3\xb6\xc3\x9f"
        "er");
  CHECK(values.at(1).toStringRef() == "an int's key");
  CHECK(values.at("transposed").toTensor().equal(torch::arange(6, torch::kFloat).view({2, 3}).t()));
  CHECK(values.at("scalar").toTensor().item<float>() == 2.5F);
  CHECK(values.at("expanded").toTensor().equal(torch::ones({3})));
  CHECK(values.at("no_elements").toTensor().sizes() == at::IntArrayRef({0, 3}));
  values.at("base").toTensor()[2] = -1;
  CHECK(values.at("slice").toTensor()[0].item<float>() == -1);
  const auto dtypes = values.at("dtypes").toGenericDict();
  CHECK(dtypes.size() == 10);
  CHECK(dtypes.at("bfloat16").toTensor().scalar_type() == torch::kBFloat16);
  for (const auto& item : dtypes)
    CHECK(item.value().toTensor().to(torch::kLong).equal(torch::tensor({0, 1, 1})));
  CHECK(read_pt(kPtGolden / "large_memo.pt").toGenericDict().at("many").toList().size() == 300);
}

TEST_CASE("read_pt says what it expected of a file of another kind", "[pt_file]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  CHECK_THROWS_WITH(read_pt(path), ContainsSubstring("cannot open: No such file"));
  CHECK_THROWS_WITH(read_pt(folder.path()), ContainsSubstring("is a folder, expected a file"));
  CHECK_THROWS_WITH(read_weights(folder.path()), ContainsSubstring("is a folder, expected a file"));
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);  // nobody writes: a reader would wait
  CHECK_THROWS_WITH(read_pt(folder.path() / "fifo"), ContainsSubstring("expected a regular file"));
  CHECK_THROWS_WITH(read_weights(folder.path() / "fifo"), ContainsSubstring("expected a regular file"));
  CHECK_THROWS_WITH(read_pt(kPtGolden / "weights.safetensors"), ContainsSubstring("is not a zip"));
  CHECK_THROWS_WITH(read_pt(kPtGolden / "unknown_global.pt"), ContainsSubstring("PosixPath"));
  CHECK_THROWS_WITH(read_weights(kPtGolden / "values.pt"), ContainsSubstring("holds no weights, expected"));
  write_file_atomic(path, "");
  CHECK_THROWS_WITH(read_weights(path), ContainsSubstring("is empty, expected a file written by torch.save"));
}

TEST_CASE("read_pt refuses a file of which any byte changed, or reads the same", "[pt_file]") {
  const TempDir folder;
  auto root = make_dict();
  root.insert("weight", torch::arange(6, torch::kFloat).view({2, 3}));
  root.insert("bias", torch::ones({2}, torch::kBool));
  root.insert("step", 3);
  const auto path = folder.path() / "a.pt";
  write_pt(path, root);
  const auto bytes = read_file(path);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      CAPTURE(i, bit);
      auto changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      check_refused_or_same(path, changed, root);
    }
}

TEST_CASE("read_pt refuses every truncation, of our file and of Python's", "[pt_file]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  write_pt(path, all_kinds());
  for (const auto& bytes : {read_file(path), read_file(kPtGolden / "adam.pt")})
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CAPTURE(size);
      std::ofstream(path, std::ios::binary) << bytes.substr(0, size);
      REQUIRE_THROWS_AS(read_pt(path), IoError);
    }
}

TEST_CASE("Python's torch.load reads the values that write_pt wrote", "[pt_file]") {
  const TempDir folder;
  write_pt(folder.path() / "a.pt", all_kinds());
  check_python(folder.path(), "torch", R"(
import torch
for mmap in (False, True):
    d = torch.load('a.pt', weights_only=True, mmap=mmap)
    assert list(d)[:2] == ['Float', 'Double'], list(d)
    names = dict(Float='float32', Double='float64', Half='float16', BFloat16='bfloat16', Long='int64', Int='int32',
                 Short='int16', Char='int8', Byte='uint8', Bool='bool', ComplexFloat='complex64',
                 ComplexDouble='complex128')
    for ours, theirs in names.items():
        assert d[ours].dtype == getattr(torch, theirs) and d[ours].tolist() == [0, 1, 1]
    assert d['scalar'].shape == () and d['scalar'].item() == 2.5 and d['no_elements'].shape == (0, 3)
    assert torch.equal(d['transposed'], torch.arange(6).view(2, 3).t())
    assert d['channels_last'].is_contiguous(memory_format=torch.channels_last)
    assert d['integers'] == [0, 255, 65536, -3, 5_000_000_000, -2**63, 2**63 - 1] and type(d['integers']) is list
    assert d['reals'] == [0.5, -1e300] and d['constants'] == (None, True, False, 0.25, 'gr\u00f6\u00df')
    assert d['empty'] == ({}, [], ()) and d['nested'] == {7: 'seven'}
)");
}
