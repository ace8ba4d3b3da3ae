// A run's own checkpoint with one value replaced by another, each in turn: the run resumes, or refuses the
// file in one line.
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::train;
using c10::IValue;
namespace fs = std::filesystem;

namespace {

struct TenNumbers : data::Dataset {
  std::int64_t size() const override { return 10; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto i = torch::tensor(indices, torch::kFloat32).view({-1, 1});
    return {i, i.clone()};
  }
};

Task linear_task() {
  torch::manual_seed(5);
  torch::nn::Linear model(1, 1);
  Task task;
  task.name = "numbers";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = task.validation_set = std::make_shared<TenNumbers>();
  task.measures = {"error"};
  task.compute_loss = [model](const data::Batch& batch) mutable {
    const auto losses = (model->forward(batch.input) - batch.target).square().squeeze(1);
    return BatchResult{losses, {{"error", losses}}, {}};
  };
  return task;
}

TrainerOptions options_in(const fs::path& out) {
  TrainerOptions options;
  options.epochs = 2;
  options.max_steps = 4;  // in the second epoch
  options.batch_size = 4;
  options.progress = options.report = options.tensorboard = false;
  options.sanity_batches = 0;
  options.out = out;
  options.config_json = R"({"task": "numbers", "batch_size": 4, "accumulate": 1, "lr": 0.1})";
  options.optim.optimizer.kind = OptimizerKind::kAdamW;
  options.optim.schedule = LrScheduleKind::kCosine;
  options.optim.warmup_steps = 2;
  options.optim.ema = 0.5;
  options.checkpoint.monitor = "val_error";
  options.checkpoint.top_k = 1;
  options.checkpoint.patience = 3;
  return options;
}

const auto& one() {
  static const auto group = ddp::ProcessGroup::connect(WorkerEnv{}, {});
  return group;
}

/// Each value in the tree, with what leads to it and how to replace it.
using Visit = std::function<void(const std::string& at, const std::function<void(const IValue&)>& replace)>;

void for_each_value(const IValue& value, const std::string& at, const Visit& visit) {
  if (value.isGenericDict())
    for (const auto& item : value.toGenericDict().copy()) {
      const auto key = item.key();
      const auto path = at + "." + (key.isString() ? key.toStringRef() : std::to_string(key.toInt()));
      const auto dict = value.toGenericDict();
      visit(path, [&](const IValue& other) { dict.insert_or_assign(key, other); });
      dict.insert_or_assign(key, item.value());
      for_each_value(item.value(), path, visit);
    }
  if (value.isList())
    for (std::size_t i = 0; i < value.toList().size(); ++i) {
      const auto list = value.toList();
      const IValue before = list.get(i);
      const auto path = at + "[" + std::to_string(i) + "]";
      visit(path, [&](const IValue& other) { list.set(i, other); });
      list.set(i, before);
      for_each_value(before, path, visit);
    }
}

std::vector<IValue> replacements() {
  c10::impl::GenericDict numbered(c10::IntType::get(), c10::AnyType::get());
  numbered.insert(std::int64_t{7}, 1.5);
  return {std::int64_t{0},
          std::int64_t{-1},
          std::int64_t{1} << 62,
          1.5,
          true,
          "x",
          IValue(),
          make_list(),
          make_list({IValue("x")}),
          make_state(),
          make_state({{"x", "y"}}),
          numbered,
          torch::zeros({0}),
          torch::full({3}, 2.0),
          torch::ones({1}, torch::kBool),
          torch::full({1, 1}, c10::complex<double>(0, 1), torch::kComplexDouble)};
}

/// In memory, where writes need not reach a disk.
struct FolderInMemory {
  const bool moved = fs::is_directory("/dev/shm") && ::setenv("TMPDIR", "/dev/shm", 1) == 0;
  const TempDir dir;
  ~FolderInMemory() {
    if (moved) ::unsetenv("TMPDIR");
  }
  const fs::path& path() const { return dir.path(); }
};

/// How resuming the file ends: "" if it does, else the error.
std::string resume(const fs::path& file, const fs::path& out) {
  auto options = options_in(out);
  options.checkpoint.resume = file;
  options.max_steps = 5;
  fs::remove_all(out);
  try {
    fit(linear_task(), options, one());
    return "";
  } catch (const IoError& error) {
    return error.what();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return "c10::Error: " + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return "std::exception: " + std::string(error.what());
  }
}

}  // namespace

TEST_CASE("a checkpoint with any value replaced is resumed, or refused in one line that names it",
          "[hostile_checkpoint]") {
  const FolderInMemory dir;
  fit(linear_task(), options_in(dir.path() / "whole"), one());
  const auto file = dir.path() / "edited.pt", lightning = dir.path() / "edited.ckpt";
  const auto whole = dir.path() / "whole" / "checkpoints" / "last.pt";
  const auto value = serialize::read_pt(whole);
  std::vector<std::string> broken;
  int tried = 0, refused = 0;
  const auto check = [&](const std::string& what, const std::string& message, const fs::path& named) {
    if (message.empty()) return;
    ++refused;
    if (message.find(named.string()) == std::string::npos || message.find('\n') != std::string::npos)
      broken.push_back(what + ": " + message.substr(0, 300));
  };
  for_each_value(value, "", [&](const std::string& at, const auto& replace) {
    int number = 0;
    for (const auto& other : replacements()) {
      replace(other);
      serialize::write_pt(file, value);
      const auto what = at + " as replacement " + std::to_string(number++);
      check(what, resume(file, dir.path() / "resumed"), file);
      try {
        save_checkpoint(lightning, read_checkpoint(file));  // as worker export
      } catch (const IoError& error) {
        check(what + ", read", error.what(), file);
      } catch (const std::exception& error) {
        check(what + ", read", error.what(), "no file");
      }
      ++tried;
    }
  });
  CHECK(tried > 500);
  CHECK(refused > 200);
  CHECK(joined(broken, "\n") == "");
}

TEST_CASE("settings of a checkpoint that would divide by zero are refused by name", "[hostile_checkpoint]") {
  const TempDir dir;
  fit(linear_task(), options_in(dir.path() / "whole"), one());
  const auto value = serialize::read_pt(dir.path() / "whole" / "checkpoints" / "last.pt");
  const auto file = dir.path() / "edited.pt";
  for (const std::string key : {"accumulate", "batch_size"}) {
    const auto config = value.toGenericDict().at("config").toGenericDict();
    const IValue before = config.at(key);
    config.insert_or_assign(key, std::int64_t{0});
    serialize::write_pt(file, value);
    CHECK(resume(file, dir.path() / "resumed") == file.string() +
                                                      ": cannot be resumed: state of the run's config: '" +
                                                      key + "': expected 1 or more, got 0");
    config.insert_or_assign(key, before);
  }
}
