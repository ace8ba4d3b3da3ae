// Real files with random damage: every reader must refuse them in one line or read a proper value, whatever
// the damage, without much memory.
#include <caffe2/serialize/inline_container.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace std::string_literals;

namespace {

const fs::path kAllGolden = DDPRUN_GOLDEN_DIR;

/// Pieces that make a pickle do something.
const std::vector<std::string> kPieces = {"cposix\nsystem\nX\x02\0\0\0ls\x85R"s,
                                          "c__builtin__\neval\nU\x01"
                                          "1\x85R"s,
                                          "ccollections\nOrderedDict\n)R"s,
                                          "ctorch._utils\n_rebuild_tensor_v2\n"s,
                                          "ctorch\nSize\n"s,
                                          "ctorch\ndevice\n"s,
                                          "ctorch\nBoolStorage\n"s,
                                          "ctorch\nDoubleStorage\n"s,
                                          "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s,
                                          "J\xff\xff\xff\xff"s,
                                          "X\xff\xff\xff\xff"s,
                                          "("s,
                                          "t"s,
                                          "e"s,
                                          "u"s,
                                          "s"s,
                                          "a"s,
                                          "R"s,
                                          "b"s,
                                          "Q"s,
                                          "]"s,
                                          "}"s,
                                          ")"s,
                                          "N"s,
                                          "0"s,
                                          "."s,
                                          "h\0"s,
                                          "q\0"s,
                                          "j\0\0\0\0"s,
                                          "\x85"s,
                                          "\x86"s,
                                          "\x87"s,
                                          "\x93"s,
                                          "\x81"s,
                                          std::string(64, '('),
                                          std::string(64, ']')};

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::string mutated(std::string bytes) {
    for (int changes = 1 + static_cast<int>(below(4)); changes > 0 && !bytes.empty(); --changes)
      change(bytes);
    return bytes;
  }
  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

 private:
  void change(std::string& bytes) {
    const auto at = below(bytes.size());
    const auto count = std::min(bytes.size() - at, 1 + below(12));
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, count);
        break;
      case 4:
        bytes.insert(below(bytes.size()), bytes.substr(at, count));
        break;
      case 5:
        bytes.insert(at, kPieces[below(kPieces.size())]);
        break;
      default: {
        const auto& piece = kPieces[below(kPieces.size())];
        bytes.replace(at, std::min(piece.size(), bytes.size() - at), piece);
      }
    }
  }
  std::mt19937 random_;
};

/// Looks at all that there is; an address outside would show under a sanitizer.
std::int64_t walk(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto tensor = value.toTensor();
    // A stride of 0 makes much of little memory.
    const auto some = tensor.numel() > 10'000 ? tensor.flatten().slice(0, 0, 100) : tensor;
    return some.to(torch::kComplexDouble).abs().sum().item<double>() >= 0 ? 1 : 0;
  }
  std::int64_t sum = 1;
  if (value.isGenericDict())
    for (const auto& item : value.toGenericDict()) sum += walk(item.key()) + walk(item.value());
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) sum += walk(element);
  if (value.isTuple())
    for (const auto& element : value.toTupleRef().elements()) sum += walk(element);
  return sum;
}

std::int64_t peak_kb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// Reads the file; counts what was refused and what was read. Anything but IoError with the file's name
/// fails.
struct Outcomes {
  int refused = 0, read = 0;

  template <typename Read>
  void add(const fs::path& path, Read read_file) {
    try {
      walk(read_file());
      ++read;
    } catch (const IoError& error) {
      const std::string text = error.what();
      if (!text.starts_with(path.string() + ": ") || text.find('\n') != std::string::npos) FAIL(text);
      ++refused;
    }
  }
};

/// A .pt file's records.
std::map<std::string, std::string> records_of(const fs::path& path) {
  caffe2::serialize::PyTorchStreamReader zip(path.string());
  std::map<std::string, std::string> records;
  const auto add = [&](const std::string& name) {
    if (!zip.hasRecord(name)) return false;
    const auto [data, size] = zip.getRecord(name);
    records[name] = std::string(static_cast<const char*>(data.get()), size);
    return true;
  };
  for (const char* name : {"data.pkl", "byteorder"}) add(name);
  for (int key = 0; add("data/" + std::to_string(key)); ++key) {
  }
  return records;
}

/// A zip with these records and the checksums that they have, so that the damage reaches the unpickler.
std::string zip_of(const std::map<std::string, std::string>& records) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  for (const auto& [name, content] : records) writer.writeRecord(name, content.data(), content.size());
  writer.writeEndOfFile();
  return bytes;
}

}  // namespace

TEST_CASE("a damaged pickle in an intact zip is refused or read, 3000 times", "[mutation]") {
  const TempDir folder;
  const auto path = folder.path() / "a.pt";
  const auto before_kb = peak_kb();
  Outcomes outcomes;
  for (const char* name :
       {"state_dict_file/values.pt", "state_dict_file/lightning.ckpt", "optimizer_state/adam_amsgrad.pt",
        "python_files/views.pt", "python_files/new_dtypes.pt", "python_files/inert.pt"}) {
    const auto records = records_of(kAllGolden / name);
    for (std::uint32_t seed = 0; seed < 500; ++seed) {
      CAPTURE(name, seed);
      auto changed = records;
      changed["data.pkl"] = Mutator(seed).mutated(records.at("data.pkl"));
      write_file_atomic(path, zip_of(changed));
      outcomes.add(path, [&] { return serialize::read_pt(path); });
    }
  }
  CHECK(outcomes.refused > 1000);
  CHECK(outcomes.read > 50);
  CHECK(peak_kb() - before_kb < 200'000);
}

TEST_CASE("a damaged checkpoint of Lightning is refused or read as a training's state, 1000 times",
          "[mutation]") {
  const TempDir folder;
  const auto path = folder.path() / "a.ckpt";
  Outcomes outcomes;
  const auto records = records_of(kAllGolden / "python_files/trainer.ckpt");
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    auto changed = records;
    changed["data.pkl"] = Mutator(seed).mutated(records.at("data.pkl"));
    write_file_atomic(path, zip_of(changed));
    outcomes.add(path, [&] { return train::to_value(train::read_checkpoint(path)); });
  }
  CHECK(outcomes.refused > 300);
}

TEST_CASE("a damaged file is refused or read, 3000 times", "[mutation]") {
  const TempDir folder;
  const auto path = folder.path() / "a";
  const auto before_kb = peak_kb();
  Outcomes outcomes;
  for (const char* name : {"state_dict_file/state_dict.pt", "python_files/views_legacy.pt",
                           "state_dict_file/legacy.pt", "state_dict_file/weights.safetensors",
                           "python_files/tied.safetensors", "state_dict_file/values.pt"}) {
    const auto bytes = read_file(kAllGolden / name);
    for (std::uint32_t seed = 0; seed < 500; ++seed) {
      CAPTURE(name, seed);
      write_file_atomic(path, Mutator(seed).mutated(bytes));
      outcomes.add(path, [&]() -> c10::IValue {
        if (std::string(name).find("views") != std::string::npos) return serialize::read_pt(path);
        c10::impl::GenericList tensors(c10::AnyType::get());
        for (const auto& [key, tensor] : train::read_weights(path)) tensors.push_back(tensor);
        return tensors;
      });
    }
  }
  CHECK(outcomes.refused > 1500);
  CHECK(peak_kb() - before_kb < 200'000);
}
