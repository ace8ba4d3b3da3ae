#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>
#include <ddprun/image/image.h>
#include "worker/config/config.h"
#include "worker/tasks/class_samples.h"

namespace ddprun::worker {

/// All commands, by name.
const std::vector<CommandEntry>& all_commands();

// The commands; argv[0] is the command's name. All throw UsageError for unknown arguments.

/// worker advise RUN: checks a run's folder against good habits, and prints a line for each flag to change,
/// or "nothing to advise". Returns 0; throws UsageError too for a folder that is no run's.
int run_advise_command(int argc, char** argv);

/// worker env: prints what a training run would find here (variables, ranks, devices, backend, addresses,
/// versions; with --network also how fast the ranks exchange) and what is wrong: rank 0 for all ranks or, if
/// they cannot meet, each rank for itself. Returns 0 if all is fine, else 1.
int run_env_command(int argc, char** argv);

/// worker export CHECKPOINT OUT [--ema] [--prefix P]: writes only a model's weights, from any file that
/// train::read_weights() reads: as a bare state_dict (OUT ends in .pt), as .safetensors, or for SAM as a
/// folder; or everything, in Lightning's format (.ckpt). Returns 0; throws IoError too.
int run_export_command(int argc, char** argv);

/// worker report RUN... [--out FILE]: writes the page of a run, or one that compares runs. Returns 0; throws
/// IoError too.
int run_report_command(int argc, char** argv);

/// worker runs FOLDER...: lists the runs in a folder, or the checkpoints of a run: branch, epoch, step,
/// score, size. Returns 0; throws IoError too.
int run_runs_command(int argc, char** argv);

/// worker prune RUN [--keep-last N] [--keep-best K] [--dry-run]: removes the other checkpoints that the run
/// has listed. Returns 0; throws IoError too, UsageError also if the run is in use.
int run_prune_command(int argc, char** argv);

/// worker TASK --predict FILE... --checkpoint FILE: the likeliest classes of pictures or rows, or of sam the
/// mask of an object. Unlike the others, argv[0] is the task's name. Returns 0; throws IoError too.
int run_predict_command(int argc, char** argv);

/// Whether the arguments request a prediction.
bool wants_prediction(int argc, char** argv);

/// A picture as a model's input.
struct AdaptedPicture {
  torch::Tensor input_CHW;  ///< float, normalised
  std::string how;          ///< "28x28 from 640x480, to grey"; empty: it had the right form
};
AdaptedPicture adapt_picture(const image::Image& picture, const PictureInput& wanted);

/// What one rank finds out about its environment.
struct EnvReport {
  struct Line {
    std::string section;  ///< "variables", "this rank", "libraries", "network"
    std::string name;
    std::string value;
  };
  std::vector<Line> lines;            ///< those of a section follow each other
  std::vector<std::string> problems;  ///< one line each: what is wrong, what was expected and found
  WorkerEnv env;                      ///< as far as the variables could be read
  std::string address = "-";          ///< where other ranks can reach this one
  bool can_meet = false;              ///< nothing prevents it from connecting to the other ranks
};

/// Inspects this process's environment and host without contacting other ranks.
EnvReport inspect_environment(const EnvLookup& lookup, const ddp::ProcessGroup::Options& options);

/// One rank's row in the table of ranks.
struct RankRow {
  std::vector<std::string> cells;     ///< as in kRankColumns; without the last, where it was not measured
  std::vector<std::string> problems;  ///< of that rank
};
inline const std::vector<std::string> kRankColumns = {"rank",    "host",    "local rank", "device",
                                                      "backend", "address", "torch",      "GB/s"};

/// Connects to the other ranks if it can, and adds failures to the problems.
///
/// network  also measures the network (network_speed.h), adds what it finds to the report, and a cell to the
/// rows group    where they meet; left open returns  every rank's row, by rank; only this rank's if they
/// could not connect
std::vector<RankRow> meet_ranks(EnvReport& report, const ddp::ProcessGroup::Options& options, bool network,
                                std::optional<ddp::ProcessGroup>& group);

/// The report as text: sections, the table of ranks, then the problems or "all is fine".
std::string to_text(const EnvReport& report, const std::vector<RankRow>& ranks);

}  // namespace ddprun::worker
