#include "worker/export_command.h"

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include "common/errors.h"
#include "worker/serialize/pt_file.h"
#include "worker/serialize/safetensors.h"
#include "worker/tasks/sam_checkpoint.h"
#include "worker/train/checkpoint.h"
#include "worker/train/state_dict_file.h"

namespace ddprun {
namespace {

struct ExportFlags {
  std::filesystem::path checkpoint, out;
  bool ema = false;
};

/// Nothing if only help was asked for.
std::optional<ExportFlags> parse_flags(int argc, char** argv) {
  CLI::App app("Writes a model's weights alone, for other programs.", "worker export");
  ExportFlags flags;
  app.add_option("CHECKPOINT", flags.checkpoint,
                 "a checkpoint, or any file of weights that --init-weights takes")
      ->required();
  app.add_option("OUT", flags.out,
                 "what to write: FILE.pt (a state_dict), FILE.safetensors, or for a SAM a folder that "
                 "transformers' SamModel.from_pretrained reads")
      ->required();
  app.add_flag("--ema", flags.ema, "the averaged weights");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("export: ") + error.what());
  }
  const auto kind = flags.out.extension();
  if (!kind.empty() && kind != ".pt" && kind != ".safetensors")
    throw UsageError("export: expected OUT to end in .pt or .safetensors, got '" + flags.out.string() + "'");
  return flags;
}

void write_state_dict(const std::filesystem::path& path, const train::StateDict& weights) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : weights) dict.insert(name, tensor);
  serialize::write_pt(path, dict);
}

/// throws  UsageError for a checkpoint that is no SAM's
void write_sam_folder(const ExportFlags& flags, const train::StateDict& weights) {
  const auto state = train::read_weights_of_checkpoint(flags.checkpoint);
  if (state.model_config.empty())
    throw UsageError("export: expected OUT to end in .pt or .safetensors, got '" + flags.out.string() +
                     "'; a folder is for a checkpoint of the task sam");
  models::Sam model(models::parse_sam_config(state.model_config, flags.checkpoint));
  train::load_weights(*model, weights, flags.checkpoint);
  tasks::write_sam(flags.out, *model);
}

void write(const ExportFlags& flags, const train::StateDict& weights) {
  if (flags.out.extension() == ".pt")
    write_state_dict(flags.out, weights);
  else if (flags.out.extension() == ".safetensors")
    serialize::write_safetensors(flags.out, weights);
  else
    write_sam_folder(flags, weights);
}

}  // namespace

int run_export_command(int argc, char** argv) {
  const auto flags = parse_flags(argc, argv);
  if (!flags) return 0;
  const auto weights =
      flags->ema ? train::read_averaged_weights(flags->checkpoint) : train::read_weights(flags->checkpoint);
  try {
    write(*flags, weights);
  } catch (const std::invalid_argument& error) {
    throw IoError(flags->out, error.what());
  }
  std::int64_t numbers = 0;
  for (const auto& [name, tensor] : weights) numbers += tensor.numel();
  std::cout << "wrote " << weights.size() << " tensors of " << numbers << " numbers to "
            << flags->out.string() << std::endl;
  return 0;
}

}  // namespace ddprun
