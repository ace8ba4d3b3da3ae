#include <algorithm>
#include <chrono>
#include <cmath>

#include <ddprun/common/errors.h>
#include <ddprun/train/state/checkpoint_policy.h>
#include "worker/config/sections.h"

namespace ddprun::worker {
namespace {

using settings::Setting;
using settings::Value;

/// A pattern that is wrong is refused before a training begins, not at its first checkpoint.
Setting checkpoint_pattern(std::string& target) {
  auto setting =
      settings::text("checkpoint-name", target,
                     "how the best are called: text with {epoch}, {step} or a metric in braces, as "
                     "{val_loss:.3f} (default: {epoch}-{step})")
          .type("PATTERN");
  setting.set = [&target](const std::string& pattern) {
    try {
      train::checkpoint_name(pattern, {}, 0, 0);
    } catch (const UsageError&) {
      return "a pattern such as {epoch:02d}-{val_loss:.3f}";
    }
    target = pattern;
    return "";
  };
  return setting;
}

}  // namespace

Setting seconds(std::string name, std::chrono::milliseconds& target, std::string help) {
  const auto parse = [](const std::string& text) -> std::optional<std::chrono::milliseconds> {
    const auto value = parse_number(text);
    if (!value || *value <= 0 || *value > 1e9) return {};
    return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(*value * 1000)));
  };
  Setting setting = settings::parsed(std::move(name), target, parse, "seconds above 0", std::move(help));
  setting.kind = Setting::Kind::kNumber;
  setting.type_name = "SECONDS";
  setting.get = [&target]() -> std::optional<Value> {
    if (target.count() <= 0) return {};
    return std::chrono::duration<double>(target).count();
  };
  return setting;
}

Setting device_setting(ddp::DeviceChoice& device) {
  using ddp::DeviceChoice;
  return settings::choice<DeviceChoice>(
      "device", device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "auto, cpu or cuda; auto: a GPU if there is one");
}

Setting backend_setting(ddp::BackendChoice& backend) {
  using ddp::BackendChoice;
  return settings::choice<BackendChoice>(
      "backend", backend,
      {{"auto", BackendChoice::kAuto}, {"gloo", BackendChoice::kGloo}, {"nccl", BackendChoice::kNccl}},
      "auto, gloo or nccl; auto: NCCL if every rank has a GPU of its own");
}

Settings checkpoint_settings(Config& config) {
  using namespace settings;
  auto& checkpoint = config.train.checkpoint;
  return {
      text("resume", checkpoint.resume,
           "go on: from the newest good checkpoint of --out (auto), or from a file")
          .type("auto|FILE")
          .of_this_run(),
      integer("checkpoint-every-steps", checkpoint.every_steps, 1, kMaxInt,
              "a checkpoint after every N steps, beside those of epochs"),
      integer("save-every", checkpoint.save_every, 1, kMaxInt,
              "a checkpoint after epochs 0, N, 2N, ... and the last"),
      boolean("save-last", checkpoint.save_last, "keep the newest under the name last"),
      integer("save-top-k", checkpoint.top_k, -1, kMaxInt, "keep the N best too; -1: all"),
      checkpoint_pattern(checkpoint.filename),
      text("monitor", checkpoint.monitor,
           "the metric to judge by (default: the loss of validation, test or training)")
          .type("METRIC"),
      choice("mode", checkpoint.mode, {"min", "max"},
             "whether less or more of it is better (default: by its name)"),
      integer("patience", checkpoint.patience, 0, kMaxInt,
              "ends after N validations without a better one; 0: never"),
      number("min-delta", checkpoint.min_delta, {0, 1e30, false, "a number from 0"},
             "by how much it must be better"),
  };
}

Settings precision_settings(Config& config) {
  using namespace settings;
  using train::Precision;
  auto& precision = config.train.precision;
  return {
      device_setting(config.device),
      choice<Precision>(
          "precision", precision.precision,
          {{"32", Precision::k32}, {"bf16-mixed", Precision::kBf16Mixed}, {"16-mixed", Precision::k16Mixed}},
          "32, bf16-mixed or 16-mixed (on a CPU: bf16-mixed)"),
      boolean("channels-last", precision.channels_last, "images and filters with their channels together"),
  };
}

/// How the ranks work together. PyTorch's names where it has them.
Settings ddp_settings(Config& config) {
  using namespace settings;
  auto& ddp = config.train.parallel;
  return {
      backend_setting(config.backend),
      seconds("timeout", config.timeout,
              "seconds a collective, or the ranks' meeting, may take before the run fails"),
      integer("bucket-mb", ddp.bucket_mb, 1, 1 << 20, "gradients are all-reduced in buckets of N MiB"),
      boolean("find-unused", ddp.find_unused, "a step may leave parameters unused, others in every step"),
      boolean("static-graph", ddp.static_graph, "every step uses the same parameters"),
      negated("bucket-view", ddp.bucket_view, "gradients in memory of their own, not in the buckets"),
      choice("comm-hook", ddp.comm_hook, {"none", "fp16", "bf16", "powersgd"},
             "how gradients travel: none, fp16, bf16 or powersgd")
          .type("HOOK"),
      boolean("sync-bn", ddp.sync_batch_norm, "batch norm over the batches of all ranks").only({"cifar10"}),
      boolean("zero1", ddp.zero1, "each rank keeps its share of the optimizer's state only (ZeRO-1)"),
      boolean("fsdp", ddp.fsdp, "each rank keeps its share of parameters, gradients and state only (FSDP)"),
      boolean("join", ddp.join, "no sample twice: ranks may have another number of steps"),
      boolean("nan-check", ddp.nan_check,
              "end the run at the first gradient that is no number, with parameter and rank"),
  };
}

Settings report_settings(Config& config) {
  using namespace settings;
  auto& train = config.train;
  return {
      integer("log-interval", train.log_interval, 1, kMaxInt, "steps between log lines"),
      negated("progress", train.progress, "no progress bar"),
      negated("tensorboard", train.tensorboard, "no event file for TensorBoard"),
      negated("report", train.report, "no report.html and no figures at the end"),
      boolean("profile", train.profile,
              "record ten steps of rank 0 in profile/: a trace and the slowest operators"),
      path("log-indices", train.log_indices, "write every step's samples to FILE.<rank>").of_this_run(),
  };
}

Settings all_settings(Config& config) {
  Settings all = {settings::choice("task", config.task, {config.task}, "").not_a_flag()};
  const auto add = [&](const char* section, Settings settings) {
    for (auto& setting : settings) {
      setting.section = section;
      setting.may_be_empty = setting.kind == Setting::Kind::kText;
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

}  // namespace ddprun::worker
