#include <ddprun/common/errors.h>
#include "worker/config/settings.h"

namespace ddprun::worker {

void settle_defaults(Config& config, const settings::Values& given) {
  auto& optim = config.train.optim;
  auto& checkpoint = config.train.checkpoint;
  const auto is_default = [&](const char* name) { return !given.given(name); };
  if (optim.clip_value > 0 && is_default("clip-norm")) optim.clip_norm = 0;
  // Without validation there are no metrics to choose or name checkpoints by.
  if (config.data.val_split > 0 || config.data.val_on_test) return;
  if (is_default("monitor")) checkpoint.monitor.clear();
  if (is_default("checkpoint-name")) checkpoint.filename.clear();
}

void validate(const Config& config) {
  const auto& train = config.train;
  const auto& ddp = train.parallel;
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
  refuse(ddp.sync_batch_norm && ddp.join, "--sync-bn", "--join");
  // Ranks with more steps than others cannot agree on which step it is.
  refuse(train.accumulate > 1 && ddp.join, "--accumulate", "--join");
  refuse(train.max_steps > 0 && ddp.join, "--max-steps", "--join");
  refuse(train.val_every_steps > 0 && ddp.join, "--val-every-steps", "--join");
  refuse(train.checkpoint.every_steps > 0 && ddp.join, "--checkpoint-every-steps", "--join");
  refuse(ddp.fsdp && train.optim.ema > 0, "--fsdp", "--ema");
  refuse(ddp.fsdp && train.precision.channels_last, "--fsdp", "--channels-last");
  refuse(train.optim.clip_norm > 0 && train.optim.clip_value > 0, "--clip-norm", "--clip-value");
  refuse(!config.sam.checkpoint.empty() && !config.model.init_weights.empty(), "--checkpoint",
         "--init-weights");
  refuse(!config.sam.checkpoint.empty() && config.sam.image_size > 0, "--checkpoint", "--image-size");
  refuse(!config.sam.checkpoint.empty() && !config.sam.architecture.empty(), "--checkpoint",
         "--architecture");
  refuse(!config.sam.points.empty() && config.sam.points_per_image > 0, "--points", "--points-per-image");
  refuse(!config.sam.embedding_cache.empty() && ddp.fsdp, "--embedding-cache", "--fsdp");
  if (!config.sam.embedding_cache.empty() && config.sam.freeze != "encoder")
    throw UsageError(
        "--embedding-cache: expected --freeze=encoder too: otherwise training changes the encoder");
  if (train.checkpoint.resume == "auto" && train.out.empty())
    throw UsageError("--resume=auto: expected --out too: the folder of the run to continue");
}

}  // namespace ddprun::worker
