#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddprun/common/settings/setting.h>
#include <ddprun/group/process_group.h>
#include <ddprun/train/loop/trainer.h>

namespace ddprun::worker {

/// What the user requested: one task and its settings.
struct Config {
  std::string task;

  struct Data {
    std::string source;            ///< a folder, a data set's name, or empty: the task's default
    std::int64_t limit_train = 0;  ///< samples over all ranks; 0: all
    std::int64_t limit_val = 0;
    std::int64_t limit_test = 0;
    double val_split = 0;      ///< fraction of the training set held out for validation; 0: none
    bool val_on_test = false;  ///< validate on the test set instead
    bool augment = true;
  } data;

  struct Model {
    std::optional<double> dropout;  ///< nullopt: the model's own
    std::filesystem::path init_weights;
    std::filesystem::path eval;  ///< weights to evaluate instead of training; empty: train
    std::string loss = "mse";
    std::string stem = "imagenet";
    double label_smoothing = 0;
  } model;

  struct Sam {
    std::string architecture = "small";     ///< small, base, large, huge or a config.json
    std::int64_t image_size = 0;            ///< side of a new model's input in pixels; 0: the architecture's
    std::filesystem::path checkpoint;       ///< an existing model; empty: a new one
    std::string freeze = "none";            ///< "encoder" or "prompt": do not train that part
    bool gradient_checkpointing = false;    ///< recompute the encoder's layers in backward
    std::filesystem::path embedding_cache;  ///< a folder for a frozen encoder's outputs; empty: none
    std::filesystem::path points;           ///< empty: random points
    std::int64_t points_per_image = 1;      ///< how many random points
  } sam;

  train::TrainerOptions train;
  ddp::DeviceChoice device = ddp::DeviceChoice::kAuto;
  ddp::BackendChoice backend = ddp::BackendChoice::kAuto;
  bool estimate = false;         ///< measure ten steps and estimate how long a run would take
  bool fast = false;             ///< settings that make training faster without losing accuracy
  bool recover_on_gpu = false;   ///< under --recover=rank, also continue in place on GPUs
  bool deterministic = false;    ///< use only algorithms whose results repeat bit for bit
  std::set<std::string> stated;  ///< names of settings given by the command line or a file
  bool summary = false;          ///< print the model's layers instead of training
  bool find_lr = false;          ///< suggest a learning rate instead of training
  bool find_batch_size = false;  ///< suggest a batch size instead of training
  std::chrono::milliseconds timeout{
      1800'000};  ///< of one collective, and of connecting the ranks; only if stated
};

/// The configuration as a flat JSON object, stored in checkpoints.
std::string to_json(const Config& config);

/// The configuration as a TOML file for --config, without settings specific to one run, such as its folder.
std::string to_toml(const Config& config);

/// How the ranks connect: within --timeout, or within five minutes by default.
ddp::ProcessGroup::Options group_options(const Config& config);

/// The name of the task and all settings, by section. The configuration must outlive them.
std::vector<settings::Setting> all_settings(Config& config);

settings::Setting device_setting(ddp::DeviceChoice& device);
settings::Setting backend_setting(ddp::BackendChoice& backend);
/// The bounds of a timeout.
inline const settings::Range kSeconds{0, 1e9, true, "seconds above 0"};

/// Uses only algorithms whose results repeat bit for bit; an operator without one throws. Like
/// torch.use_deterministic_algorithms(True); also sets cuBLAS's workspace and turns off cuDNN's search for
/// the fastest algorithm. Call it before the first use of a GPU.
void make_deterministic();

/// throws UsageError for settings that do not work with the loss scaling of 16-mixed, on a GPU
void check_precision(const Config& config, at::Device device);

/// On a CPU, changes 16-mixed to bf16-mixed, as Lightning does, and logs it on rank 0: float16 is slow there,
/// if it works at all.
void settle_precision(Config& config, at::Device device, int rank);

/// throws  UsageError for --backend=nccl on a CPU; ranks that share a GPU see it when they meet
void check_backend(const Config& config, at::Device device);

}  // namespace ddprun::worker
