#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/train/loop/trainer.h>

namespace ddprun::worker {

/// What the user asked the worker for: one task and its settings.
struct Config {
  std::string task;

  struct Data {
    std::string source;            ///< a folder, the name of a data set, or empty: the task's default
    std::int64_t limit_train = 0;  ///< samples over all ranks; 0: all
    std::int64_t limit_val = 0;
    std::int64_t limit_test = 0;
    double val_split = 0;      ///< part of the training set that is for validation; 0: none
    bool val_on_test = false;  ///< validation on the test set, in place of a part of the training set
    bool augment = true;
  } data;

  struct Model {
    std::optional<double> dropout;  ///< nullopt: the model's own
    std::filesystem::path init_weights;
    std::string loss = "mse";
    std::string stem = "imagenet";
    double label_smoothing = 0;
  } model;

  struct Sam {
    std::string architecture = "small";     ///< small, base, large, huge or a config.json
    std::int64_t image_size = 0;            ///< of a new model, pixels of a side; 0: the architecture's
    std::filesystem::path checkpoint;       ///< a model that is there already; empty: a new one
    std::string freeze = "none";            ///< "encoder" or "prompt": that part is not trained
    bool gradient_checkpointing = false;    ///< the encoder's layers run again in backward
    std::filesystem::path embedding_cache;  ///< a folder for a frozen encoder's results; empty: none
    std::filesystem::path points;           ///< empty: points are drawn
    std::int64_t points_per_image = 1;      ///< of those that are drawn
  } sam;

  train::TrainerOptions train;
  ddp::DeviceChoice device = ddp::DeviceChoice::kAuto;
  ddp::BackendChoice backend = ddp::BackendChoice::kAuto;
  bool deterministic = false;                   ///< only algorithms that give the same every time
  bool overwrite = false;                       ///< a run folder that holds a run already may be used
  std::chrono::milliseconds timeout{1800'000};  ///< of one collective, and of the ranks to meet
};

/// The configuration as a flat JSON object, as checkpoints keep it.
std::string to_json(const Config& config);

/// The configuration as a TOML file that --config accepts, without what every run has its own of: its folder.
std::string to_toml(const Config& config);

/// How the ranks meet. They may take as long as a collective to find each other, five minutes at most.
ddp::ProcessGroup::Options group_options(const Config& config);

}  // namespace ddprun::worker
