#include "worker/commands/commands.h"

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>
#include "worker/config/kept_checkpoints.h"
#include "worker/sam/sam_model.h"

namespace ddprun::worker {
namespace {

struct ExportFlags {
  std::filesystem::path checkpoint, out;
  std::string prefix;
  bool ema = false;
};

/// nullopt for --help.
std::optional<ExportFlags> parse_export_flags(int argc, char** argv) {
  ExportFlags flags;
  settings::Command command;
  command.name = "worker export";
  command.description = "writes a model's weights alone, for other programs.";
  command.positionals = {{"checkpoint", "CHECKPOINT"}, {"out", "OUT"}};
  command.settings = {
      settings::help_flag(),
      settings::path(
          "checkpoint", flags.checkpoint,
          "a checkpoint, a run's folder (its best checkpoint), or any file that --init-weights takes")
          .not_a_flag(),
      settings::path(
          "out", flags.out,
          "what to write: FILE.pt (a state_dict), FILE.safetensors, FILE.ckpt (for Lightning, with "
          "everything in CHECKPOINT), or, for SAM, a folder that transformers' SamModel.from_pretrained "
          "reads")
          .not_a_flag(),
      settings::boolean("ema", flags.ema, "write the averaged weights"),
      settings::text("prefix", flags.prefix, "put this before every name, such as backbone."),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return std::nullopt;
  return flags;
}

/// An existing folder, or a path that does not end in .pt, .safetensors or .ckpt: folder names may contain a
/// dot.
bool is_folder(const std::filesystem::path& out) {
  std::error_code unknown;
  const auto kind = out.extension();
  return std::filesystem::is_directory(out, unknown) || !out.has_filename() ||
         (kind != ".pt" && kind != ".safetensors" && kind != ".ckpt");
}

void write_state_dict(const std::filesystem::path& path, const train::OpenWeights& weights) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : weights.tensors) dict.insert(name, tensor);
  serialize::write_pt(path, dict, weights.value_of);
}

/// The weights and, for a folder, the model's shape.
struct Exported {
  train::OpenWeights weights;
  std::string model_config = {};
};

/// Drops the LightningModule attribute that contains the whole network, since there is no model to compare
/// with.
void drop_attribute(train::StateDict& weights) {
  const auto& first = weights.front().first;
  const auto prefix = first.substr(0, first.find('.') + 1);
  const auto is_below = [&](const auto& item) { return item.first.starts_with(prefix); };
  const auto is_deeper = [&](const auto& item) {
    return item.first.find('.', prefix.size()) != std::string::npos;
  };
  if (prefix.empty() || !std::ranges::all_of(weights, is_below) || !std::ranges::any_of(weights, is_deeper))
    return;
  for (auto& [name, tensor] : weights) name.erase(0, prefix.size());
  log_info("the prefix '" + prefix + "' of all names is dropped");
}

/// throws  UsageError if OUT is a folder and the checkpoint not a SAM's; IoError
Exported read_checkpoint(const ExportFlags& flags) {
  const auto& path = flags.checkpoint;
  if (!is_folder(flags.out)) {
    auto weights =
        train::open_weights(path, flags.ema ? train::WeightsOf::kAverages : train::WeightsOf::kModel);
    if (weights.lightning) drop_attribute(weights.tensors);
    return {std::move(weights)};
  }
  if (!flags.prefix.empty())
    throw UsageError("--prefix: expected OUT to be a file, got '" + flags.out.string() + "'");
  const auto state =
      serialize::is_safetensors(path) ? train::TrainingState() : train::read_weights_of_checkpoint(path);
  if (state.model_config.empty())
    throw UsageError("export: expected OUT to end in .pt, .safetensors or .ckpt, got '" + flags.out.string() +
                     "'; a folder is for a checkpoint of the task sam");
  return {
      {flags.ema ? train::to_averaged_weights(state.ema, path) : train::to_weights(state.model, path), {}},
      state.model_config};
}

/// Without --ema, everything in the training state.
void write_lightning(const ExportFlags& flags, const Exported& model) {
  auto state = flags.ema ? std::nullopt : train::read_if_checkpoint(flags.checkpoint);
  if (!state) state.emplace();
  train::gather_shards(*state, flags.checkpoint, {"model", "ema", "optimizer"});
  auto weights = train::make_state();
  for (const auto& [name, tensor] : model.weights.tensors)
    weights.insert(name, model.weights.value_of ? model.weights.value_of(tensor).clone() : tensor);
  state->model = weights;
  state->prefix = flags.prefix;
  train::save_checkpoint(flags.out, *state);
}

void write(const ExportFlags& flags, Exported model) {
  if (flags.out.extension() == ".ckpt") return write_lightning(flags, model);
  for (auto& [name, tensor] : model.weights.tensors) name.insert(0, flags.prefix);
  if (model.model_config.empty())
    return flags.out.extension() == ".pt"
               ? write_state_dict(flags.out, model.weights)
               : serialize::write_safetensors(flags.out, model.weights.tensors, {}, model.weights.value_of);
  sam::Sam sam(sam::parse_sam_config(model.model_config, flags.checkpoint));
  train::load_weights(*sam, model.weights.tensors, flags.checkpoint);
  sam::write_sam(flags.out, sam->config(), model.weights.tensors);
}

}  // namespace

int run_export_command(int argc, char** argv) {
  auto flags = parse_export_flags(argc, argv);
  if (!flags) return 0;
  flags->checkpoint = checkpoint_of(flags->checkpoint);
  if (std::error_code none; std::filesystem::equivalent(flags->checkpoint, flags->out, none))
    throw UsageError(
        "export: expected OUT to be a file other than CHECKPOINT, which it would replace, got '" +
        flags->out.string() + "'");
  check_not_of_a_run(flags->out, "export: expected OUT");
  const auto model = read_checkpoint(*flags);
  try {
    write(*flags, model);
  } catch (const std::invalid_argument& error) {
    throw IoError(flags->out, error.what());
  }
  std::int64_t numbers = 0;
  for (const auto& [name, tensor] : model.weights.tensors) numbers += tensor.numel();
  std::cout << "wrote " << model.weights.tensors.size() << " tensors of " << numbers << " numbers to "
            << flags->out.string() << std::endl;
  return 0;
}

}  // namespace ddprun::worker
