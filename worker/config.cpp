#include "worker/config.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/errors.h"
#include "common/spelling.h"
#include "worker/flags.h"

namespace ddprun {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // beyond it, JSON readers lose digits

/// A flag that parse understands, or refuses in one line.
template <typename Choice>
void add_choice(CLI::App& app, const std::string& name, Choice& target,
                Choice (*parse)(const std::string& flag, const std::string& text), const std::string& help) {
  app.add_option_function<std::string>(
         name, [=, &target](const std::string& text) { target = parse(name, text); }, help)
      ->type_name("NAME");
}

void add_common_flags(CLI::App& app, Config& config, double& timeout_seconds) {
  const auto max_int = std::numeric_limits<int>::max();
  app.add_option("--data", config.data.source, "a folder, or the name of a data set")->type_name("DIR|NAME");
  app.add_option("--out", config.train.out, "run folder (default: runs/<task>-<UTC time>)")->type_name("DIR");
  app.add_flag("--overwrite", config.overwrite, "use the run folder even if it holds a run");
  add_integer(app, "--epochs", config.train.epochs, 1, max_int, "passes over the training set")
      ->capture_default_str();
  add_integer(app, "--batch-size", config.train.batch_size, 1, max_int, "samples a step, of each rank")
      ->capture_default_str();
  add_integer(app, "--limit-train", config.data.limit_train, 1, kMaxCount,
              "use only the first N training samples");
  add_integer(app, "--limit-test", config.data.limit_test, 1, kMaxCount, "use only the first N test samples");
  add_number(app, "--lr", config.optim.lr, 0, 1e30, true, "a number above 0", "learning rate")
      ->capture_default_str();
  add_integer(app, "--seed", config.train.seed, 0, kMaxCount, "of everything random")->capture_default_str();
  add_integer(app, "--log-interval", config.train.log_interval, 1, max_int, "steps between log lines")
      ->capture_default_str();
  add_integer(app, "--loader-threads", config.train.loader_threads, 0, 64,
              "threads that prepare batches; 0: none beside the training")
      ->capture_default_str();
  app.add_option(both_spellings("--init-weights"), config.model.init_weights,
                 "start from a model's weights: .pt of ours or of Python, .safetensors")
      ->type_name("FILE");
  app.add_flag_function(
      both_spellings("--no-progress"), [&config](std::int64_t) { config.train.progress = false; },
      "no progress bar");
  add_choice(app, "--device", config.device, ddp::parse_device_choice,
             "auto, cpu or cuda; auto: a GPU if there is one (default: auto)");
  add_choice(app, "--backend", config.backend, ddp::parse_backend_choice,
             "auto, gloo or nccl; auto: NCCL if every rank has a GPU of its own (default: auto)");
  add_number(app, "--timeout", timeout_seconds, 0, 1e9, true, "seconds above 0",
             "seconds a collective, or the ranks' meeting, may take before the run fails")
      ->capture_default_str();
}

/// How the ranks work together. PyTorch's names where it has them.
void add_ddp_flags(CLI::App& app, train::ParallelOptions& ddp) {
  add_integer(app, "--bucket-mb", ddp.bucket_mb, 1, 1 << 20, "gradients are all-reduced in buckets of N MiB")
      ->capture_default_str();
  app.add_flag(both_spellings("--find-unused"), ddp.find_unused,
               "a step may leave parameters unused, others in every step");
  app.add_flag(both_spellings("--static-graph"), ddp.static_graph, "every step uses the same parameters");
  app.add_flag_function(
      both_spellings("--no-bucket-view"), [&ddp](std::int64_t) { ddp.bucket_view = false; },
      "gradients in memory of their own, not in the buckets");
  app.add_option(both_spellings("--comm-hook"), ddp.comm_hook,
                 "how gradients travel: none, fp16, bf16 or powersgd")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool known = text == "none" || text == "fp16" || text == "bf16" || text == "powersgd";
            return known ? "" : "expected none, fp16, bf16 or powersgd, got '" + text + "'";
          },
          ""))
      ->type_name("HOOK")
      ->capture_default_str();
  app.add_flag("--zero1", ddp.zero1, "each rank keeps its share of the optimizer's state only (ZeRO-1)");
  app.add_flag("--fsdp", ddp.fsdp,
               "each rank keeps its share of parameters, gradients and state only (FSDP)");
  app.add_flag("--join", ddp.join, "no sample twice: ranks may have another number of steps");
  app.add_flag(both_spellings("--nan-check"), ddp.nan_check,
               "end the run at the first gradient that is no number, with parameter and rank");
}

/// throws  UsageError for flags that exclude each other
void check_combinations(const train::ParallelOptions& ddp) {
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
}

void add_mnist(CLI::App& app, Config& config, double& timeout_seconds) {
  auto* mnist = app.add_subcommand("mnist", "the MNIST CNN, on MNIST or Fashion-MNIST");
  mnist->footer(
      "--data takes a folder with the four IDX files, mnist or fashion-mnist; without it MNIST is used where "
      "it is\n"
      "found ($DDPRUN_DATA/mnist, the cache folder), else Fashion-MNIST.");
  add_common_flags(*mnist, config, timeout_seconds);
  add_ddp_flags(*mnist, config.train.parallel);
  add_number(*mnist, "--dropout", config.model.dropout, 0, 1, false, "a probability from 0 to 1",
             "of both dropout layers (default: 0.25 and 0.5)");
}

/// The first thing on the command line that nobody understood; empty if there is none.
std::string first_extra(const CLI::App& app) {
  for (const auto* part : app.get_subcommands())
    if (const auto extras = part->remaining(); !extras.empty()) return extras.front();
  const auto extras = app.remaining();
  return extras.empty() ? "" : extras.front();
}

/// CLI11's message where it names flag, expectation and value; our own words elsewhere.
std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  const auto extra = first_extra(app);
  const bool no_task = app.get_subcommands().empty();
  if (extra.rfind('-', 0) == 0) return "unknown flag '" + extra + "', see worker --help";
  if (!extra.empty())
    return no_task ? "unknown task '" + extra + "', expected: mnist" : "unknown argument '" + extra + "'";
  if (no_task) return "no task given, expected: mnist";
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return text.substr(0, text.find(':')) + ": expected one value";
  return text;
}

}  // namespace

Config parse_config(int argc, const char* const* argv) {
  Config config;
  double timeout_seconds = std::chrono::duration<double>(config.timeout).count();
  CLI::App app(
      "Distributed data-parallel training in C++. Start it under ddprun (or torchrun, srun), or alone.",
      "worker");
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "worker " DDPRUN_VERSION);
  app.footer(
      "worker TASK --help shows a task's flags. Every flag may be spelt with - or _.\n"
      "Example: ddprun --nproc-per-node=2 worker mnist --data fashion-mnist --epochs 1");
  add_mnist(app, config, timeout_seconds);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::exit(app.exit(success));
  } catch (const CLI::ParseError& error) {
    throw UsageError(explain(error, app));
  }
  config.task = app.get_subcommands().front()->get_name();
  config.timeout = std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(timeout_seconds * 1000)));
  check_combinations(config.train.parallel);
  config.train.config_json = to_json(config);
  return config;
}

std::string to_json(const Config& config) {
  nlohmann::ordered_json json = {{"task", config.task},
                                 {"data", config.data.source},
                                 {"limit_train", config.data.limit_train},
                                 {"limit_test", config.data.limit_test},
                                 {"lr", config.optim.lr},
                                 {"epochs", config.train.epochs},
                                 {"batch_size", config.train.batch_size},
                                 {"seed", config.train.seed},
                                 {"init_weights", config.model.init_weights.string()}};
  const auto& ddp = config.train.parallel;
  json.update({{"bucket_mb", ddp.bucket_mb},
               {"find_unused", ddp.find_unused},
               {"static_graph", ddp.static_graph},
               {"bucket_view", ddp.bucket_view},
               {"comm_hook", ddp.comm_hook},
               {"zero1", ddp.zero1},
               {"fsdp", ddp.fsdp},
               {"join", ddp.join},
               {"nan_check", ddp.nan_check}});
  json["dropout"] = config.model.dropout ? nlohmann::ordered_json(*config.model.dropout) : nullptr;
  // A path is bytes, JSON is UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ddp::ProcessGroup::Options group_options(const Config& config) {
  ddp::ProcessGroup::Options options;
  options.timeout = config.timeout;
  options.connect_timeout = std::min<std::chrono::milliseconds>(config.timeout, std::chrono::minutes(5));
  options.device = config.device;
  options.backend = config.backend;
  return options;
}

}  // namespace ddprun
