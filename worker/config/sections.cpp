#include "worker/config/sections.h"

namespace ddprun::worker {
namespace {

using settings::Range;
using settings::Setting;
using settings::Value;

Range positive() { return {0, 1e30, true, "a number above 0"}; }
Range from_zero() { return {0, 1e30, false, "a number from 0"}; }

/// cosine: units, or the word epochs for all that the run has.
Setting t_max(std::int64_t& target) {
  const auto parse = [](const std::string& text) {
    return text == "epochs" ? std::optional<std::int64_t>(0)
                            : parse_integer(text, std::int64_t{1}, settings::kMaxInt);
  };
  Setting setting =
      settings::parsed("t-max", target, parse, integer_from(1, settings::kMaxInt) + ", or epochs",
                       "cosine: units until the lowest learning rate; epochs: as many as the run has");
  setting.kind = Setting::Kind::kIntegerOrText;
  setting.type_name = "N|epochs";
  setting.get = [&target]() -> std::optional<Value> {
    if (target == 0) return "epochs";
    return target;
  };
  return setting;
}

}  // namespace

Settings data_settings(Config& config) {
  using namespace settings;
  auto& data = config.data;
  auto& sam = config.sam;
  return {
      text("data", data.source, "a folder, or the name of a data set")
          .type("DIR|NAME")
          .only({"mnist", "cifar10"}),
      text("data", data.source, "a table of one's own: the last column is the label, 0 or 1")
          .type("FILE.csv")
          .only({"linear"}),
      text("data", data.source, "a folder with images/ and masks/, or the name of a data set")
          .type("DIR|NAME")
          .only({"sam"}),
      path("points", sam.points, "points of the images, CSV or NPY: index,y,x (default: drawn at random)")
          .only({"sam"}),
      integer("points-per-image", sam.points_per_image, 1, 256, "how many are drawn").only({"sam"}),
      integer("limit-train", data.limit_train, 1, kMaxCount, "use only the first N training samples"),
      integer("limit-val", data.limit_val, 1, kMaxCount, "use only the first N validation samples")
          .only({"linear", "mnist", "cifar10", "sam"}),
      integer("limit-test", data.limit_test, 1, kMaxCount, "use only the first N test samples")
          .only({"mnist", "cifar10"}),
      number("val-split", data.val_split, {0, 0.999, false, "a part from 0, below 1"},
             "this part of the training set is for validation; 0: none")
          .only({"linear", "mnist", "cifar10", "sam"}),
      boolean("val-on-test", data.val_on_test, "validation on the test set, as the document has it")
          .only({"cifar10"}),
      negated("augment", data.augment, "no random crops and flips").only({"cifar10"}),
      integer("loader-threads", config.train.loader_threads, 0, 64,
              "threads that prepare batches; 0: none beside the training"),
  };
}

Settings model_settings(Config& config) {
  using namespace settings;
  auto& model = config.model;
  auto& sam = config.sam;
  return {
      path("init-weights", model.init_weights,
           "start from a model's weights: .pt of ours or of Python, .safetensors"),
      number("dropout", model.dropout, {0, 1, false, "a probability from 0 to 1"},
             "of both dropout layers (default: 0.25 and 0.5)")
          .only({"mnist"}),
      choice("loss", model.loss, {"mse", "cross_entropy"},
             "mse or cross_entropy (the document's, by which nothing is learnt)")
          .only({"toy"}),
      choice("loss", model.loss, {"dice", "dice_focal", "dice_bce"},
             "dice, dice_focal (SAM's authors': Dice + 20 x focal loss) or dice_bce")
          .only({"sam"}),
      text("architecture", sam.architecture, "of a new model: small, base, large, huge or a config.json")
          .type("NAME|FILE")
          .only({"sam"}),
      integer("image-size", sam.image_size, 1, 16384,
              "pixels of a side that a new model sees (default: the architecture's)")
          .only({"sam"}),
      path("checkpoint", sam.checkpoint,
           "start from a model of transformers: its folder, or model.safetensors or pytorch_model.bin in it")
          .type("DIR|FILE")
          .only({"sam"}),
      choice("freeze", sam.freeze, {"none", "encoder", "prompt"},
             "none, encoder or prompt: a part that is not trained")
          .only({"sam"}),
      boolean("gradient-checkpointing", sam.gradient_checkpointing,
              "less memory, more time: the encoder's layers run again in backward")
          .only({"sam"}),
      path("embedding-cache", sam.embedding_cache, "keep a frozen encoder's results in this folder")
          .type("DIR")
          .only({"sam"}),
      choice("stem", model.stem, {"imagenet", "cifar"},
             "imagenet: 7x7, stride 2 and pooling, as torchvision's; cifar: 3x3")
          .only({"cifar10"}),
      number("label-smoothing", model.label_smoothing, {0, 1, false, "a part from 0 to 1"},
             "this part of the target is spread over all classes")
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
                            "sgd, adam, adamw or adadelta"),
      number("momentum", optim.optimizer.momentum, {0, 1, false, "a number from 0 to 1"}, "of sgd"),
      number("weight-decay", optim.optimizer.weight_decay, from_zero(), "(default: adamw 0.01, else 0)"),
      choice<bool>("scale-lr", optim.scale_lr, {{"none", false}, {"linear", true}},
                   "linear: learning rate x ranks"),
      choice<LrScheduleKind>("lr-schedule", optim.schedule,
                             {{"none", LrScheduleKind::kNone},
                              {"step", LrScheduleKind::kStep},
                              {"cosine", LrScheduleKind::kCosine},
                              {"one-cycle", LrScheduleKind::kOneCycle},
                              {"plateau", LrScheduleKind::kPlateau}},
                             "none, step, cosine, one-cycle or plateau"),
      choice<bool>("lr-interval", optim.schedule_per_step, {{"epoch", false}, {"step", true}},
                   "the schedule's unit: epoch or (optimizer) step"),
      t_max(optim.t_max),
      integer("step-size", optim.step_size, 1, kMaxInt, "step: units between two changes"),
      number("gamma", optim.gamma, {0, 1, true, "a number above 0, 1 at most"},
             "step, plateau: factor of the learning rate"),
      integer("plateau-patience", optim.plateau_patience, 0, kMaxInt,
              "plateau: epochs without a better --monitor before the learning rate falls"),
      integer("warmup-steps", optim.warmup_steps, 0, kMaxInt, "optimizer steps of linear warm-up"),
      number("clip-norm", optim.clip_norm, from_zero(), "gradients' norm at most; 0: any"),
      number("clip-value", optim.clip_value, from_zero(), "every gradient's absolute value at most; 0: any"),
      number("ema", optim.ema, {0, 1, true, "a decay above 0, 1 at most"},
             "evaluate moving averages of the weights, of this decay"),
  };
}

Settings train_settings(Config& config) {
  using namespace settings;
  auto& train = config.train;
  return {
      path("out", train.out, "run folder (default: runs/<task>-<UTC time>)").type("DIR").of_this_run(),
      integer("epochs", train.epochs, 1, kMaxInt, "passes over the training set"),
      integer("max-steps", train.max_steps, 1, kMaxCount, "optimizer steps at most"),
      number("max-time", train.max_seconds, {0, 1e9, true, "seconds above 0"}, "ends after so many seconds")
          .type("SECONDS"),
      integer("batch-size", train.batch_size, 1, kMaxInt, "samples a batch, of each rank"),
      integer("accumulate", train.accumulate, 1, kMaxInt, "batches of an optimizer step"),
      integer("val-every-steps", train.val_every_steps, 1, kMaxInt,
              "validation after every N steps, not after every epoch")
          .only({"linear", "mnist", "cifar10", "sam"}),
      integer("sanity-batches", train.sanity_batches, 0, kMaxInt,
              "batches of validation before the training, to find mistakes early")
          .only({"linear", "mnist", "cifar10", "sam"}),
      integer("seed", train.seed, 0, kMaxCount, "of everything random"),
      boolean("deterministic", config.deterministic, "only algorithms that give the same every time"),
  };
}

}  // namespace ddprun::worker
