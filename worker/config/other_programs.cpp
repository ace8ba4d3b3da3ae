// What the flags and values of other programs mean here: one table.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "worker/config/config.h"

namespace ddprun::worker {
namespace {

using settings::Foreign;
using Means = Foreign::Means;

/// The flag, with any value, is ours under another name.
Foreign same(std::string name, const std::string& ours) {
  return {std::move(name), "", Means::kOurs, ours + "={}"};
}

/// The same for a switch.
Foreign same_switch(std::string name, const std::string& ours) {
  return {std::move(name), "", Means::kOurs, ours + "={}", /*is_switch=*/true};
}

/// The flag with this value is this setting of ours.
Foreign means(std::string name, std::string value, std::string ours) {
  return {std::move(name), std::move(value), Means::kOurs, std::move(ours)};
}

/// The switch, turned on, is this setting of ours.
Foreign turns_on(std::string name, std::string ours) {
  return {std::move(name), "true", Means::kOurs, std::move(ours), /*is_switch=*/true};
}

/// The flag with this value asks for what happens anyway.
Foreign nothing(std::string name, std::string value, std::string why) {
  return {std::move(name), std::move(value), Means::kNothing, std::move(why)};
}

/// The flag, with any other value, has no equal here.
Foreign other(std::string name, std::string instead) {
  return {std::move(name), "", Means::kOther, std::move(instead)};
}

/// Lightning's HH:MM:SS or DD:HH:MM:SS, as our --max-time has it.
std::optional<std::string> from_clock(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() != 3 && parts.size() != 4) return {};
  std::int64_t seconds = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto part = parse_integer<std::int64_t>(parts[i], 0, 1'000'000);
    if (!part) return {};
    seconds = seconds * (i + 3 == parts.size() ? 24 : 60) + *part;
  }
  for (const auto& [unit, letter] : {std::pair(86400, "d"), {3600, "h"}, {60, "m"}})
    if (seconds > 0 && seconds % unit == 0) return std::to_string(seconds / unit) + letter;
  return std::to_string(seconds);
}

constexpr const char* kEachGpu = "start one worker for each GPU: ddprun --nproc-per-node=gpu worker ...";

std::vector<Foreign> lightnings_flags() {
  const std::string counts = " counts samples of all ranks, not batches or a fraction of them";
  const std::string all = "all batches are used anyway";
  Foreign max_time = same("max-time", "max-time");
  max_time.convert = from_clock;
  return {
      same("max-epochs", "epochs"),
      std::move(max_time),
      means("precision", "16", "precision=16-mixed"),
      means("precision", "fp16", "precision=16-mixed"),
      means("precision", "bf16", "precision=bf16-mixed"),
      means("precision", "32-true", "precision=32"),
      means("precision", "fp32", "precision=32"),
      means("accelerator", "gpu", "device=cuda"),
      means("accelerator", "cuda", "device=cuda"),
      means("accelerator", "cpu", "device=cpu"),
      means("accelerator", "auto", "device=auto"),
      other("accelerator", "expected gpu, cpu or auto, or --device=cuda, cpu or auto"),
      means("device", "gpu", "device=cuda"),
      nothing("devices", "1", "a worker uses one device anyway"),
      {"devices", "auto", Means::kOther, kEachGpu},
      {"devices", "-1", Means::kOther, kEachGpu},
      other("devices", "start one worker for each device: ddprun --nproc-per-node={} worker ..."),
      nothing("num-nodes", "1", "one node is the default"),
      other("num-nodes", "start ddprun on each node: ddprun --nnodes={} --rdzv-endpoint=HOST worker ..."),
      nothing("strategy", "auto", "several ranks train with DistributedDataParallel anyway"),
      nothing("strategy", "ddp", "several ranks train with DistributedDataParallel anyway"),
      means("strategy", "ddp_find_unused_parameters_true", "find-unused=true"),
      means("strategy", "ddp_find_unused_parameters_false", "find-unused=false"),
      means("strategy", "fsdp", "fsdp=true"),
      other("strategy", "expected ddp or fsdp; --zero1 splits the optimizer's state"),
      nothing("val-check-interval", "1.0", "validation follows every epoch anyway"),
      other("val-check-interval", "use --val-every-steps=N, which counts optimizer steps"),
      nothing("check-val-every-n-epoch", "1", "validation follows every epoch anyway"),
      other("check-val-every-n-epoch", "use --val-every-steps=N, which counts optimizer steps"),
      nothing("limit-train-batches", "1.0", all),
      other("limit-train-batches", "use --limit-train=N, which" + counts),
      nothing("limit-val-batches", "1.0", all),
      other("limit-val-batches", "use --limit-val=N, which" + counts),
      nothing("limit-test-batches", "1.0", all),
      other("limit-test-batches", "use --limit-test=N, which" + counts),
      other("overfit-batches", "use --limit-train=N, which" + counts),
      same("accumulate-grad-batches", "accumulate"),
      same("gradient-clip-val", "clip-norm"),
      nothing("gradient-clip-algorithm", "norm", "--clip-norm limits the norm"),
      other("gradient-clip-algorithm", "use --clip-value=X, which limits each gradient's value"),
      same("num-sanity-val-steps", "sanity-batches"),
      same("log-every-n-steps", "log-interval"),
      same_switch("sync-batchnorm", "sync-bn"),
      same_switch("benchmark", "cudnn-benchmark"),
      same_switch("enable-progress-bar", "progress"),
      means("ckpt-path", "last", "resume=auto"),
      same("ckpt-path", "resume"),
      other("default-root-dir", "use --out=DIR, which is the folder of this run alone"),
      means("profiler", "pytorch", "profile=true"),
      other("profiler", "use --profile, which writes PyTorch's trace"),
      {"detect-anomaly", "", Means::kOther, "use --nan-check, which finds NaN in gradients", true},
      {"fast-dev-run", "", Means::kOther, "use --max-steps=1, or --sanity-batches=N for the validation",
       true},
  };
}

/// Those of Transformers, Accelerate, torchvision's and PyTorch's examples.
std::vector<Foreign> examples_flags() {
  const std::string betas = "use --betas=B1,B2";
  return {
      same("learning-rate", "lr"),
      same("num-epochs", "epochs"),
      same("total-epochs", "epochs"),
      same("num-train-epochs", "epochs"),
      same("per-device-train-batch-size", "batch-size"),
      other("global-batch-size", "use --batch-size=N, which counts the samples of each rank"),
      same("num-workers", "loader-threads"),
      same("workers", "loader-threads"),
      same("dataloader-num-workers", "loader-threads"),
      same_switch("dataloader-drop-last", "drop-last"),
      same("gradient-accumulation-steps", "accumulate"),
      same("max-grad-norm", "clip-norm"),
      same("wd", "weight-decay"),
      same("logging-steps", "log-interval"),
      same("print-freq", "log-interval"),
      same("output-dir", "out"),
      same("data-path", "data"),
      same("data-dir", "data"),
      same("resume-from-checkpoint", "resume"),
      means("mixed-precision", "no", "precision=32"),
      means("mixed-precision", "fp16", "precision=16-mixed"),
      means("mixed-precision", "bf16", "precision=bf16-mixed"),
      turns_on("fp16", "precision=16-mixed"),
      turns_on("bf16", "precision=bf16-mixed"),
      turns_on("amp", "precision=16-mixed"),
      turns_on("no-cuda", "device=cpu"),
      turns_on("no-accel", "device=cpu"),
      turns_on("use-cpu", "device=cpu"),
      same("dist-backend", "backend"),
      same("bucket-cap-mb", "bucket-mb"),
      same_switch("find-unused-parameters", "find-unused"),
      other("adam-beta1", betas),
      other("adam-beta2", betas),
      other("beta1", betas),
      other("beta2", betas),
  };
}

/// Those that torchrun and ddprun take, before the name of the program.
std::vector<Foreign> launchers_flags() {
  std::vector<Foreign> flags;
  for (const std::string name :
       {"nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port", "rdzv-endpoint",
        "rdzv-backend", "rdzv-id", "max-restarts", "hosts", "recover", "log-dir"})
    flags.push_back(
        other(name, "a flag of ddprun, which goes before worker: ddprun --" + name + "={} worker ..."));
  flags.push_back({"standalone", "", Means::kOther,
                   "a flag of ddprun, which goes before worker: ddprun --standalone worker ...", true});
  return flags;
}

}  // namespace

std::vector<settings::Foreign> other_programs_flags() {
  auto flags = lightnings_flags();
  for (auto& flag : examples_flags()) flags.push_back(std::move(flag));
  for (auto& flag : launchers_flags()) flags.push_back(std::move(flag));
  return flags;
}

}  // namespace ddprun::worker
