#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/settings/command.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::worker {

struct Classifier;

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
    std::int64_t crop_size = 0;  ///< side of the random crops; 0: the image's
    std::int64_t crop_padding = 4;
    std::string image_sizes;  ///< progressive resizing, as data::parse_image_sizes() reads it; empty: none
  } data;

  struct Model {
    std::optional<double> dropout;  ///< nullopt: the model's own
    std::filesystem::path init_weights;
    std::filesystem::path eval;  ///< weights to evaluate instead of training; empty: train
    std::string loss = "mse";
    std::string stem = "imagenet";
    double label_smoothing = 0;
    bool test_time_flip = false;  ///< evaluation averages the scores of an image and its mirror image
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
    std::int64_t prompts_per_image = 1;     ///< how many random prompts of an image
  } sam;

  train::TrainerOptions train;
  ddp::DeviceChoice device = ddp::DeviceChoice::kAuto;
  ddp::BackendChoice backend = ddp::BackendChoice::kAuto;
  bool is_settled = false;       ///< for the device, or as the checkpoint has it
  bool resumes = false;          ///< from a checkpoint or from memory: initial weights are not read
  std::string resumed_shape;     ///< the model's, as the checkpoint has it; empty: the settings tell it
  bool estimate = false;         ///< measure ten steps and estimate how long a run would take
  std::string recipe = "none";   ///< settings that reach a known accuracy
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

/// Flags and values of Lightning, torchrun, Transformers and PyTorch's examples, and what they mean here.
std::vector<settings::Foreign> other_programs_flags();

settings::Setting device_setting(ddp::DeviceChoice& device);
settings::Setting backend_setting(ddp::BackendChoice& backend);
/// The bounds of a timeout.
inline const settings::Range kSeconds{0, 1e9, true, "seconds above 0"};

/// Uses only algorithms whose results repeat bit for bit; an operator without one throws. Like
/// torch.use_deterministic_algorithms(True); also sets cuBLAS's workspace and turns off cuDNN's search for
/// the fastest algorithm. Call it before the first use of a GPU.
void make_deterministic();

/// Unless it is known already, --fast's choice of precision or graph for the device. On a CPU, changes
/// 16-mixed to bf16-mixed, as Lightning does, and logs it on rank 0: float16 is slow there, if it works at
/// all. throws UsageError for settings that do not work with the loss scaling of 16-mixed, on a GPU
void settle_on_device(Config& config, at::Device device, int rank);

/// With --fast: turns on what makes the settled precision fast on this CPU. Rank 0 logs it.
void use_fast_cpu(const Config& config, int rank);

/// Whether the device will be the CPU. Then tasks can be loaded before it is chosen; else LibTorch, which
/// looks for CUDA only once, could decide that there is none.
bool is_for_cpu(const Config& config);

/// Chooses this rank's device and makes precision and backend fit. Call it early.
/// throws  UsageError for settings that the device does not allow, such as --backend=nccl on a CPU
at::Device set_up_device(Config& config, const WorkerEnv& env);

/// A task as known to the program.
struct TaskEntry {
  std::string name;
  std::string description;  ///< one line, for the help
  std::string footer;       ///< for the task's own help
  /// Settings given without a flag, and their names in the help.
  std::vector<std::pair<std::string, std::string>> positionals = {};
  bool leaves_unused = false;  ///< no step uses some of the model's parameters
  /// Sets the task's defaults, which may depend on other settings.
  void (*set_defaults)(Config&);
  train::Task (*make)(const Config&);
  /// For worker TASK --predict; null: the task has no classes.
  ///
  /// source  the weights' file, for errors
  /// data    the data set that it was trained on, as --data names it
  Classifier (*classifier)(const train::StateDict& weights, const std::filesystem::path& source,
                           const std::string& data) = nullptr;
};

/// A command of the program, apart from the tasks.
struct CommandEntry {
  std::string name;
  std::string usage;  ///< its arguments, for the help
  std::string description;
  int (*run)(int argc, char** argv);  ///< argv[0] is the command's name
};

/// Parses the worker's command line and the file that its --config names. --help, --version and
/// --print-config print to stdout and end the program with 0.
///
/// commands  for help and messages
/// throws    UsageError: one line that names the flag, or the file's line, what was expected and what was
/// got;
///           IoError for a file that cannot be read
Config parse_config(int argc, const char* const* argv, const std::vector<TaskEntry>& tasks,
                    const std::vector<CommandEntry>& commands);

/// Whether it is for a training: not for an evaluation, a search or a text.
bool trains(const Config& config);

/// Drops defaults that contradict stated settings. throws  UsageError for settings that exclude each other
void settle(Config& config, const TaskEntry& task);

/// In config_of_state(), besides the settings: TrainingState::model_config, if there is one.
inline constexpr char kModelShape[] = "model_shape";

/// The settings in the checkpoint that --resume names, as to_json(); empty if there is none.
/// throws  IoError for a file that is no checkpoint
std::string config_of_checkpoint(const Config& config);

/// The same of a state, wherever it was kept.
std::string config_of_state(const train::TrainingState& state);

/// The settings that apply to a run that resumes.
struct ResumedConfig {
  Config config;
  Config before;        ///< the one that made the checkpoint
  std::string changes;  ///< "--lr 0.1 replaces the checkpoint's 0.01", ...; empty: none
};

/// The one rule: each setting is as stated on the command line or in --config, else as in the checkpoint. How
/// long to train (--epochs, --max-steps, --max-time) and on what (--device, --backend, --timeout) is this
/// run's own.
///
/// checkpoint_json  config_of_checkpoint()
/// throws  UsageError for another optimizer, or settings that exclude each other
ResumedConfig resumed_config(const Config& config, const std::string& checkpoint_json, const TaskEntry& task);

/// Makes a folder PARENT/<task>-<UTC time> that no other process has. throws IoError
std::filesystem::path make_new_folder(const std::filesystem::path& parent, const std::string& task);

/// Makes and locks the run folder, with checkpoints/ (rank 0 only). An empty path stands for
/// runs/<task>-<UTC time>.
///
/// returns  the folder
/// throws   UsageError if another process is using it; IoError if a folder cannot be made or written to
std::filesystem::path make_run_folder(const Config& config);

/// On rank 0 of a training, before anything waits: runs that were set aside stay if the command line names
/// them, or files in them.
void keep_named_runs();

/// Keeps other processes from using the run folder until this one ends. Again once it has another
/// checkpoints/, so that the earlier one is free. throws as make_run_folder()
void lock_run_folder(const std::filesystem::path& folder);

/// Where this process's ddprun job has saved a checkpoint: in `out`, or if that is empty, in a folder of
/// runs/. Empty: it has not.
std::filesystem::path folder_of_this_job(const std::filesystem::path& out);

/// Removes the folder if it holds only what every run writes before its first step.
void remove_unused_run_folder(const std::filesystem::path& folder);

/// How to continue, evaluate and use this run, for the end of its log. Its folder must be known.
std::vector<train::NextCommand> next_commands(const Config& config, const ddp::ProcessGroup& group);

/// The files that write_run_files() writes.
std::vector<std::string> run_file_names();

/// Writes config.toml, and environment.json: versions, host, ranks, device, threads (rank 0 only). A full
/// disk is only a warning.
void write_run_files(train::RunFolder& folder, const Config& config, const ddp::ProcessGroup& group);

}  // namespace ddprun::worker
