#include "worker/config/sections.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/errors.h"

namespace ddprun {
namespace {

using Settings = std::vector<Setting>;

Range positive(std::string expected = "a number above 0") { return {0, 1e30, true, std::move(expected)}; }

/// A duration, which the user gives in seconds.
Setting seconds(std::string name, std::chrono::milliseconds& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.kind = Setting::Kind::kNumber;
  setting.type_name = "SECONDS";
  setting.help = std::move(help);
  setting.set = [&target](const std::string& text) -> std::string {
    double value = 0;
    auto expected = number("", value, {0, 1e9, true, "seconds above 0"}, "").set(text);
    if (expected.empty())
      target = std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(value * 1000)));
    return expected;
  };
  setting.get = [&target]() -> std::optional<Value> {
    if (target.count() <= 0) return std::nullopt;
    return std::chrono::duration<double>(target).count();
  };
  return setting;
}

}  // namespace

Settings data_settings(Config& config) {
  return {
      text("data", config.data.source, "a folder, or the name of a data set").type("DIR|NAME"),
      integer("limit-train", config.data.limit_train, 1, kMaxCount, "use only the first N training samples"),
      integer("limit-test", config.data.limit_test, 1, kMaxCount, "use only the first N test samples"),
      integer("loader-threads", config.train.loader_threads, 0, 64,
              "threads that prepare batches; 0: none beside the training"),
  };
}

Settings model_settings(Config& config) {
  return {
      path("init-weights", config.model.init_weights,
           "start from a model's weights: .pt of ours or of Python, .safetensors"),
      number("dropout", config.model.dropout, {0, 1, false, "a probability from 0 to 1"},
             "of both dropout layers (default: 0.25 and 0.5)")
          .only({"mnist"}),
  };
}

Settings optim_settings(Config& config) {
  return {number("lr", config.train.optim.lr, positive(), "learning rate")};
}

Settings train_settings(Config& config) {
  auto& train = config.train;
  return {
      path("out", train.out, "run folder (default: runs/<task>-<UTC time>)").type("DIR").of_this_run(),
      integer("epochs", train.epochs, 1, kMaxInt, "passes over the training set"),
      integer("batch-size", train.batch_size, 1, kMaxInt, "samples a step, of each rank"),
      integer("seed", train.seed, 0, kMaxCount, "of everything random"),
  };
}

Settings checkpoint_settings(Config&) { return {}; }

Settings precision_settings(Config& config) {
  using ddp::DeviceChoice;
  return {
      choice<DeviceChoice>(
          "device", config.device,
          {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
          "auto, cpu or cuda; auto: a GPU if there is one"),
  };
}

/// How the ranks work together. PyTorch's names where it has them.
Settings ddp_settings(Config& config) {
  auto& ddp = config.train.parallel;
  using ddp::BackendChoice;
  return {
      choice<BackendChoice>(
          "backend", config.backend,
          {{"auto", BackendChoice::kAuto}, {"gloo", BackendChoice::kGloo}, {"nccl", BackendChoice::kNccl}},
          "auto, gloo or nccl; auto: NCCL if every rank has a GPU of its own"),
      seconds("timeout", config.timeout,
              "seconds a collective, or the ranks' meeting, may take before the run fails"),
      integer("bucket-mb", ddp.bucket_mb, 1, 1 << 20, "gradients are all-reduced in buckets of N MiB"),
      boolean("find-unused", ddp.find_unused, "a step may leave parameters unused, others in every step"),
      boolean("static-graph", ddp.static_graph, "every step uses the same parameters"),
      negated("bucket-view", ddp.bucket_view, "gradients in memory of their own, not in the buckets"),
      choice("comm-hook", ddp.comm_hook, {"none", "fp16", "bf16", "powersgd"},
             "how gradients travel: none, fp16, bf16 or powersgd")
          .type("HOOK"),
      boolean("zero1", ddp.zero1, "each rank keeps its share of the optimizer's state only (ZeRO-1)"),
      boolean("fsdp", ddp.fsdp, "each rank keeps its share of parameters, gradients and state only (FSDP)"),
      boolean("join", ddp.join, "no sample twice: ranks may have another number of steps"),
      boolean("nan-check", ddp.nan_check,
              "end the run at the first gradient that is no number, with parameter and rank"),
  };
}

Settings report_settings(Config& config) {
  return {
      integer("log-interval", config.train.log_interval, 1, kMaxInt, "steps between log lines"),
      negated("progress", config.train.progress, "no progress bar"),
  };
}

Settings all_settings(Config& config) {
  Settings all;
  const auto add = [&](const char* section, Settings settings) {
    for (auto& setting : settings) {
      setting.section = section;
      all.push_back(std::move(setting));
    }
  };
  add("data", data_settings(config));
  add("model", model_settings(config));
  add("optim", optim_settings(config));
  add("train", train_settings(config));
  add("checkpoint", checkpoint_settings(config));
  add("precision", precision_settings(config));
  add("ddp", ddp_settings(config));
  add("report", report_settings(config));
  return all;
}

void check_combinations(const Config& config) {
  const auto& ddp = config.train.parallel;
  const auto refuse = [](bool both, const std::string& first, const std::string& second) {
    if (both) throw UsageError(first + " and " + second + ": expected one of them at most");
  };
  refuse(ddp.fsdp && ddp.zero1, "--fsdp", "--zero1");
  refuse(ddp.fsdp && ddp.comm_hook != "none", "--fsdp", "--comm-hook");
  refuse(ddp.fsdp && ddp.find_unused, "--fsdp", "--find-unused");
  refuse(ddp.fsdp && ddp.static_graph, "--fsdp", "--static-graph");
  refuse(ddp.fsdp && ddp.join, "--fsdp", "--join");
  refuse(ddp.zero1 && ddp.join, "--zero1", "--join");
  refuse(ddp.nan_check && ddp.join, "--nan-check", "--join");
  refuse(ddp.static_graph && ddp.join, "--static-graph", "--join");
}

}  // namespace ddprun
