#include "worker/config/config.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>

#include <ddprun/common/errors.h>
#include <ddprun/data/image_dataset.h>
#include <ddprun/train/state/checkpoint_policy.h>

namespace ddprun::worker {
namespace {

using Settings = std::vector<settings::Setting>;
using settings::Range;
using settings::Setting;
using settings::Value;

const std::vector<std::string> kWithValidation = {"linear", "mnist", "cifar10", "sam"};

Range positive() { return {0, 1e30, true, "a number above 0"}; }
Range from_zero() { return {0, 1e30, false, "a number from 0"}; }

/// cosine: a number of units, or "epochs" for the whole run.
Setting t_max(std::int64_t& target) {
  const auto parse = [](const std::string& text) {
    return text == "epochs" ? std::optional<std::int64_t>(0)
                            : parse_integer(text, std::int64_t{1}, settings::kMaxInt);
  };
  Setting setting = settings::parsed(
      "t-max", target, parse, integer_from(1, settings::kMaxInt) + ", or epochs",
      "--lr-schedule=cosine: epochs or steps until the rate is at its lowest; 'epochs': the whole run");
  setting.kind = Setting::Kind::kIntegerOrText;
  setting.type_name = "N|epochs";
  setting.get = [&target]() -> std::optional<Value> {
    if (target == 0) return "epochs";
    return target;
  };
  return setting;
}

/// A number of seconds, or one with a unit: "90", "10m", "1.5h", "2d".
Setting max_time(double& target) {
  const auto parse = [](std::string text) -> std::optional<double> {
    double unit = 1;
    for (const auto& [letter, seconds] : {std::pair('s', 1), {'m', 60}, {'h', 3600}, {'d', 86400}})
      if (text.ends_with(letter)) unit = seconds;
    if (text.find_first_of("smhd") != std::string::npos) text.pop_back();
    const auto number = parse_number(text);
    return number && kSeconds.contains(*number * unit) ? std::optional(*number * unit) : std::nullopt;
  };
  Setting setting = settings::parsed("max-time", target, parse, "a time above 0 such as 90, 10m, 1.5h or 2d",
                                     "stop after this time: seconds, or with a unit, as in 10m, 1.5h or 2d");
  setting.type_name = "TIME";
  setting.get = [&target] { return target > 0 ? std::optional<Value>(target) : std::nullopt; };
  return setting;
}

/// torch.optim's betas: two numbers with a comma between them.
Setting betas(double& first, double& second) {
  auto setting =
      settings::unbound("betas", Setting::Kind::kText,
                        "decay rates of the averages of gradients and of their squares (adam, adamw)")
          .type("B1,B2");
  setting.set = [&first, &second](const std::string& text) {
    double one = 0, two = 0;
    char more = 0;
    const auto fits = [](double beta) { return beta >= 0 && beta < 1; };
    if (std::sscanf(text.c_str(), "%lf,%lf%c", &one, &two, &more) != 2 || !fits(one) || !fits(two))
      return "two numbers from 0 to less than 1, such as 0.9,0.999";
    std::tie(first, second) = std::tie(one, two);
    return "";
  };
  setting.get = [&first, &second]() -> std::optional<Value> {
    return nlohmann::json(first).dump() + "," + nlohmann::json(second).dump();  // the shortest digits
  };
  return setting;
}

Setting image_sizes(std::string& target) {
  const auto parse = [](const std::string& text) {
    return data::parse_image_sizes(text) ? std::optional(text) : std::nullopt;
  };
  auto setting =
      settings::parsed("image-sizes", target, parse,
                       "sides in pixels with their shares of the epochs, such as 14:0.5,21:0.35,28",
                       "progressive resizing: train on smaller images first, SIDE:SHARE of the epochs")
          .such_as("14:0.5,21:0.35,28")
          .type("SIDE:SHARE,...")
          .only({"cifar10"});
  setting.kind = Setting::Kind::kText;
  setting.get = [&target] { return target.empty() ? std::nullopt : std::optional<Value>(target); };
  return setting;
}

/// Rejects an invalid pattern before the training begins, not at its first checkpoint.
Setting checkpoint_pattern(std::string& target) {
  auto setting = settings::text("checkpoint-name", target,
                                "file name of the best checkpoints, with {epoch}, {step} or a metric such as "
                                "{val_loss:.3f} (default: {epoch}-{step})")
                     .type("PATTERN")
                     .such_as("{epoch}-{step}");
  setting.set = [&target](const std::string& pattern) -> std::string {
    try {
      report::MetricRow metrics;
      for (const auto& name : train::metrics_in(pattern)) metrics.emplace_back(name, 0.5);
      const auto name = train::checkpoint_name(pattern, metrics, 0, 0);
      if (name.find('/') != std::string::npos) return "a file name without '/'";
      if (name.size() > 200) return "a name of at most 200 bytes";  // others are made from it
    } catch (const train::CheckpointNameError& error) {
      return error.expected;
    }
    target = pattern;
    return "";
  };
  return setting;
}

Settings data_settings(Config& config) {
  using namespace settings;
  auto& data = config.data;
  auto& sam = config.sam;
  return {
      text("data", data.source, "the data set: its folder or its name")
          .such_as("fashion-mnist")
          .type("DIR|NAME")
          .only({"mnist", "cifar10"}),
      text("data", data.source,
           "a CSV table whose last column is the label, 0 or 1 (default: random samples)")
          .such_as("table.csv")
          .type("FILE.csv")
          .only({"linear"}),
      text("data", data.source, "the data set: a folder with images/ and masks/, or a name")
          .such_as("nuclei")
          .type("DIR|NAME")
          .only({"sam"}),
      path("points", sam.points,
           "a CSV or NPY file of prompts: index,y,x (default: random points on the objects)")
          .such_as("points.csv")
          .only({"sam"}),
      integer("points-per-image", sam.points_per_image, 1, 256, "how many random points to draw per image")
          .such_as("1")
          .only({"sam"}),
      integer("prompts-per-image", sam.prompts_per_image, 1, 64,
              "how many random prompts to draw per image, each with its points")
          .such_as("8")
          .only({"sam"}),
      integer("limit-train", data.limit_train, 1, kMaxCount, "use only the first N training samples")
          .such_as("12000"),
      integer("limit-val", data.limit_val, 1, kMaxCount, "use only the first N validation samples")
          .such_as("1000")
          .only(kWithValidation),
      integer("limit-test", data.limit_test, 1, kMaxCount, "use only the first N test samples")
          .such_as("1000")
          .only({"mnist", "cifar10"}),
      number("val-split", data.val_split, {0, 0.999, false, "a fraction from 0 to less than 1"},
             "hold out this fraction of the training set for validation; 0: none")
          .only(kWithValidation),
      boolean("val-on-test", data.val_on_test, "validate on the test set, as the original script does")
          .only({"cifar10"}),
      negated("augment", data.augment, "do not crop or flip images at random").only({"cifar10"}),
      integer("crop-padding", data.crop_padding, 0, 1000,
              "zeros around an image before its random crop, in pixels")
          .only({"cifar10"}),
      integer("crop-size", data.crop_size, 1, 4096,
              "side of the random crops in pixels (default: the image's)")
          .such_as("28")
          .only({"cifar10"}),
      image_sizes(data.image_sizes),
      negated("augment", data.augment, "do not turn, mirror or brighten images at random").only({"sam"}),
      integer("loader-threads", config.train.loader_threads, 0, 64,
              "threads that prepare batches; 0: the training thread prepares them"),
  };
}

Settings model_settings(Config& config) {
  using namespace settings;
  auto& model = config.model;
  auto& sam = config.sam;
  return {
      path("init-weights", model.init_weights,
           "start from these weights: .pt (a checkpoint or a state_dict), .safetensors, or a run's folder")
          .such_as("runs/first")
          .type("FILE|RUN"),
      path("eval", model.eval, "do not train: evaluate these weights; takes what --init-weights takes")
          .such_as("runs/first")
          .type("FILE|RUN")
          .of_this_run(),
      number("dropout", model.dropout, {0, 1, false, "a probability from 0 to 1"},
             "probability of both dropout layers (default: 0.25 and 0.5)")
          .such_as("0.5")
          .only({"mnist"}),
      choice("loss", model.loss, {"mse", "cross_entropy"},
             "loss function; cross_entropy is the tutorial's, with which the model learns nothing here")
          .only({"toy"}),
      choice("loss", model.loss, {"dice", "dice_focal", "dice_bce"},
             "loss function; SAM was trained with dice_focal: Dice + 20 x focal")
          .only({"sam"}),
      text("architecture", sam.architecture, "size of a new model: small, base, large, huge or a config.json")
          .such_as("small")
          .type("NAME|FILE")
          .only({"sam"}),
      integer("image-size", sam.image_size, 1, 16384,
              "side of a new model's input in pixels (default: the architecture's)")
          .such_as("128")
          .only({"sam"}),
      path("checkpoint", sam.checkpoint,
           "start from a SamModel of transformers (its folder, or the weights file in it) or from a run")
          .such_as("sam-vit-base")
          .type("DIR|FILE|RUN")
          .only({"sam"}),
      choice("freeze", sam.freeze, {"none", "encoder", "prompt"}, "part of the model that is not trained")
          .only({"sam"}),
      boolean("gradient-checkpointing", sam.gradient_checkpointing,
              "save memory: compute the encoder's layers again in the backward pass")
          .only({"sam"}),
      path("embedding-cache", sam.embedding_cache,
           "store a frozen encoder's outputs in this folder and reuse them")
          .such_as("embeddings")
          .type("DIR")
          .only({"sam"}),
      choice("stem", model.stem, {"imagenet", "cifar"},
             "first layers: torchvision's (7x7, stride 2, pooling), or 3x3 for small images")
          .only({"cifar10"}),
      number("label-smoothing", model.label_smoothing, {0, 1, false, "a fraction from 0 to 1"},
             "spread this fraction of the target over all classes")
          .only({"cifar10"}),
      boolean("test-time-flip", model.test_time_flip,
              "evaluate with the mean of the scores of an image and its mirror image")
          .only({"cifar10"}),
  };
}

Settings optim_settings(Config& config) {
  using namespace settings;
  auto& optim = config.train.optim;
  using train::LrScheduleKind;
  using train::OptimizerKind;
  return {
      number("lr", optim.optimizer.lr, positive(), "learning rate"),
      choice<OptimizerKind>("optimizer", optim.optimizer.kind,
                            {{"sgd", OptimizerKind::kSgd},
                             {"adam", OptimizerKind::kAdam},
                             {"adamw", OptimizerKind::kAdamW},
                             {"adadelta", OptimizerKind::kAdadelta}},
                            "how gradients change the weights"),
      number("momentum", optim.optimizer.momentum, {0, 1, false, "a number from 0 to 1"},
             "momentum of --optimizer=sgd"),
      boolean("nesterov", optim.optimizer.nesterov, "Nesterov's momentum for --optimizer=sgd"),
      betas(optim.optimizer.beta1, optim.optimizer.beta2),
      number("weight-decay", optim.optimizer.weight_decay, from_zero(),
             "weight decay (default: adamw 0.01, else 0)")
          .such_as("0.01"),
      number("norm-weight-decay", optim.grouping.norm_weight_decay, from_zero(),
             "weight decay of norms (default: that of the other weights)")
          .such_as("0.0"),
      number("bias-weight-decay", optim.grouping.bias_weight_decay, from_zero(),
             "weight decay of biases (default: that of the other weights)")
          .such_as("0.0"),
      number("layer-decay", optim.grouping.layer_decay, {0, 1, true, "a number above 0 and at most 1"},
             "learning rate of each layer, as a fraction of the next layer's"),
      choice<bool>("scale-lr", optim.scale_lr, {{"none", false}, {"linear", true}},
                   "linear: multiply the learning rate by the number of ranks"),
      choice<LrScheduleKind>("lr-schedule", optim.schedule,
                             {{"none", LrScheduleKind::kNone},
                              {"step", LrScheduleKind::kStep},
                              {"cosine", LrScheduleKind::kCosine},
                              {"one-cycle", LrScheduleKind::kOneCycle},
                              {"plateau", LrScheduleKind::kPlateau}},
                             "how the learning rate changes"),
      choice<bool>("lr-interval", optim.schedule_per_step, {{"epoch", false}, {"step", true}},
                   "whether the schedule advances every epoch or every optimizer step"),
      t_max(optim.t_max),
      integer("step-size", optim.step_size, 1, kMaxInt,
              "--lr-schedule=step: epochs or steps between two changes"),
      number("gamma", optim.gamma, {0, 1, true, "a number above 0 and at most 1"},
             "--lr-schedule=step or plateau: multiply the learning rate by this"),
      integer("plateau-patience", optim.plateau_patience, 0, kMaxInt,
              "--lr-schedule=plateau: epochs without improvement of --monitor before the rate falls"),
      number("pct-start", optim.pct_start, {0, 1, true, "a fraction above 0 and at most 1"},
             "--lr-schedule=one-cycle: fraction of the run in which the learning rate rises"),
      choice<bool>("anneal-strategy", optim.linear, {{"cos", false}, {"linear", true}},
                   "--lr-schedule=one-cycle: how the learning rate rises and falls"),
      negated("cycle-momentum", optim.cycle_momentum, "--lr-schedule=one-cycle: leave the momentum as it is"),
      integer("warmup-steps", optim.warmup_steps, 0, kMaxInt,
              "raise the learning rate linearly over the first N optimizer steps"),
      number("clip-norm", optim.clip_norm, from_zero(), "limit the norm of the gradients; 0: no limit"),
      number("clip-value", optim.clip_value, from_zero(),
             "limit the absolute value of each gradient; 0: no limit"),
      number("ema", optim.ema, {0, 1 - 1e-12, false, "a decay from 0 to less than 1"},
             "evaluate a moving average of the weights with this decay; 0: none"),
  };
}

Settings train_settings(Config& config) {
  using namespace settings;
  auto& train = config.train;
  return {
      path("out", train.out, "write the run to this folder (default: runs/<task>-<UTC time>)")
          .such_as("runs/first")
          .type("DIR")
          .of_this_run(),
      integer("epochs", train.epochs, 1, kMaxInt, "passes over the training set"),
      integer("max-steps", train.max_steps, 1, kMaxCount, "stop after N optimizer steps").such_as("1000"),
      max_time(train.max_seconds).such_as("3600.0"),
      integer("batch-size", train.batch_size, 1, kMaxInt, "samples per batch on each rank"),
      boolean("drop-last", train.drop_last, "leave out an epoch's last samples if they do not fill a batch"),
      integer("accumulate", train.accumulate, 1, kMaxInt, "batches per optimizer step"),
      integer("val-every-steps", train.val_every_steps, 1, kMaxInt,
              "validate every N steps instead of every epoch")
          .such_as("100")
          .only(kWithValidation),
      integer("sanity-batches", train.sanity_batches, 0, kMaxInt,
              "validate N batches before training, to find mistakes early")
          .only(kWithValidation),
      integer("seed", train.seed, 0, kMaxCount, "seed of everything random"),
      boolean("allow-nan", train.allow_nan, "end with exit code 0 even if the last loss is NaN or infinite"),
      boolean("estimate", config.estimate,
              "measure ten steps, print how long an epoch and the run take on 1, 2, 4 and 8 ranks, and end")
          .of_this_run(),
      boolean("deterministic", config.deterministic, "use only algorithms whose results repeat bit for bit"),
  };
}

Settings checkpoint_settings(Config& config) {
  using namespace settings;
  auto& checkpoint = config.train.checkpoint;
  return {
      text("resume", checkpoint.resume,
           "continue a run from its newest checkpoint, or from a file; auto: the run in --out")
          .such_as("runs/first")
          .type("auto|FILE|RUN")
          .of_this_run(),
      integer("checkpoint-every-steps", checkpoint.every_steps, 1, kMaxInt,
              "also save a checkpoint every N steps")
          .such_as("100"),
      integer(
          "memory-checkpoint-every", checkpoint.memory_every_steps, 1, kMaxInt,
          "under ddprun --recover=rank, keep the state in ddprun's memory every N steps (default: as often "
          "as possible at a cost of 1 %)")
          .such_as("10")
          .of_this_run(),
      boolean("replicate-shards", checkpoint.replicate_shards,
              "under ddprun --recover=rank, keep a copy of each rank's part of the state on another node")
          .of_this_run(),
      boolean(
          "recover-on-gpu", config.recover_on_gpu,
          "under ddprun --recover=rank, replace lost ranks on GPUs too (tested with two ranks on one GPU)")
          .of_this_run(),
      integer("save-every", checkpoint.save_every, 1, kMaxInt,
              "save a checkpoint after epochs 1, N + 1, 2N + 1, ... and the last one"),
      negated("save-last", checkpoint.save_last, "do not keep the newest checkpoint as last.pt"),
      integer("save-top-k", checkpoint.top_k, -1, kMaxInt, "also keep the N best checkpoints; -1: all"),
      checkpoint_pattern(checkpoint.filename),
      text("monitor", checkpoint.monitor,
           "metric that decides which checkpoint is best (default: the validation, test or training loss)")
          .such_as("train_loss_epoch")
          .type("METRIC"),
      choice("mode", checkpoint.mode, {"min", "max"},
             "whether a smaller or larger --monitor is better (default: by its name)")
          .such_as("min"),
      integer("patience", checkpoint.patience, 0, kMaxInt,
              "stop after N validations without improvement; 0: never"),
      number("min-delta", checkpoint.min_delta, {0, 1e30, false, "a number from 0"},
             "smallest change that counts as an improvement"),
  };
}

Settings precision_settings(Config& config) {
  using namespace settings;
  using train::GraphChoice;
  using train::Precision;
  auto& precision = config.train.precision;
  return {
      device_setting(config.device),
      choice<Precision>(
          "precision", precision.precision,
          {{"32", Precision::k32}, {"bf16-mixed", Precision::kBf16Mixed}, {"16-mixed", Precision::k16Mixed}},
          "32-bit floats, or mixed with 16-bit ones; on a CPU, 16-mixed becomes bf16-mixed"),
      boolean("channels-last", precision.channels_last,
              "store images channels-last, which may speed up convolutions"),
      choice("matmul-precision", precision.matmul, {"highest", "high", "medium"},
             "precision of float32 matrix products; high: TF32 on a GPU, medium: bf16"),
      choice("recipe", config.recipe, {"none", "94"},
             "94: the settings that reached 94 % test accuracy in PyTorch; other flags win over them")
          .only({"cifar10"}),
      boolean(
          "fast", config.fast,
          "turn on what is often faster and no less accurate: --channels-last; on a GPU, --cudnn-benchmark "
          "and --cuda-graph=auto; on a CPU with AMX, bf16-mixed for mnist and cifar10"),
      boolean("cudnn-benchmark", precision.cudnn_benchmark,
              "on a GPU, try cuDNN's algorithms for each new shape and keep the fastest"),
      choice<GraphChoice>(
          "cuda-graph", config.train.cuda_graph,
          {{"off", GraphChoice::kOff}, {"auto", GraphChoice::kAuto}, {"on", GraphChoice::kOn}},
          "run each step on a GPU as one CUDA graph; auto: where possible, on: fail otherwise"),
  };
}

/// How the ranks work together, with PyTorch's names where they exist.
Settings ddp_settings(Config& config) {
  using namespace settings;
  auto& ddp = config.train.parallel;
  return {
      backend_setting(config.backend),
      seconds(
          "timeout", config.timeout, kSeconds,
          "fail if a collective takes longer [1800; over NCCL 600]; if given, also the limit for connecting "
          "all ranks [300]"),
      integer("bucket-mb", ddp.bucket_mb, 1, 1 << 20, "all-reduce gradients in buckets of N MiB"),
      boolean("find-unused", ddp.find_unused, "allow steps that leave some parameters unused, at some cost"),
      boolean("static-graph", ddp.static_graph,
              "promise that every step uses the same parameters, which saves time"),
      negated("bucket-view", ddp.bucket_view, "keep gradients outside the buckets, which takes more memory"),
      choice("comm-hook", ddp.comm_hook, {"none", "fp16", "bf16", "powersgd"},
             "compress gradients for the all-reduce"),
      boolean("sync-bn", ddp.sync_batch_norm, "compute batch norm over the batches of all ranks"),
      boolean("zero1", ddp.zero1, "split the optimizer's state over the ranks (ZeRO-1)"),
      boolean("fsdp", ddp.fsdp, "split parameters, gradients and optimizer state over the ranks (FSDP)"),
      boolean("join", ddp.join, "use no sample twice: ranks may then have different numbers of batches"),
      boolean("nan-check", ddp.nan_check,
              "stop at the first gradient that is NaN or infinite, naming parameter and rank"),
      integer("check-replicas", ddp.check_replicas, 0, kMaxInt,
              "compare parameters and optimizer state across ranks every N steps, and before a checkpoint, "
              "to find a rank that computes wrong numbers; 0: never"),
  };
}

Settings report_settings(Config& config) {
  using namespace settings;
  auto& train = config.train;
  return {
      integer("log-interval", train.log_interval, 1, kMaxInt, "log every N steps"),
      negated("progress", train.progress, "show no progress bar"),
      negated("tensorboard", train.tensorboard, "write no event file for TensorBoard"),
      negated("report", train.report, "write no report.html and no figures at the end"),
      boolean("profile", train.profile,
              "profile ten steps of each rank into profile/: traces and the slowest operators"),
      path("log-indices", train.log_indices, "write the indices of every step's samples to FILE.<rank>")
          .such_as("indices")
          .of_this_run(),
  };
}

}  // namespace

Setting device_setting(ddp::DeviceChoice& device) {
  using ddp::DeviceChoice;
  return settings::choice<DeviceChoice>(
             "device", device,
             {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
             "where to train; auto: on a GPU if there is one")
      .known_as({"--gpu", "--gpus", "--cuda", "--use-gpu"});
}

Setting backend_setting(ddp::BackendChoice& backend) {
  using ddp::BackendChoice;
  return settings::choice<BackendChoice>(
      "backend", backend,
      {{"auto", BackendChoice::kAuto}, {"gloo", BackendChoice::kGloo}, {"nccl", BackendChoice::kNccl}},
      "library for collectives; auto: NCCL if each rank has its own GPU, else Gloo");
}

Settings all_settings(Config& config) {
  Settings all = {settings::choice("task", config.task, {config.task}, "").not_a_flag()};
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

}  // namespace ddprun::worker
