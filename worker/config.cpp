#include "worker/config.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/errors.h"
#include "common/spelling.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // beyond it, JSON readers lose digits

/// A flag with a whole number from low to high.
template <typename Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& names, Integer& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  const auto check = [low, high](std::string& text) -> std::string {
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (!text.empty() && *end == '\0' && errno == 0 && value >= low && value <= high &&
        !std::isspace(text[0])) {
      text = std::to_string(value);  // CLI11, which converts it next, would take 010 for octal
      return "";
    }
    return "expected an integer from " + std::to_string(low) + " to " + std::to_string(high) + ", got '" +
           text + "'";
  };
  return app.add_option(both_spellings(names), target, help)
      ->transform(CLI::Validator(check, ""))
      ->type_name("N");
}

/// A flag with a number from low to high, both included; with open_low, low itself is not allowed.
template <typename Number>
CLI::Option* add_number(CLI::App& app, const std::string& names, Number& target, double low, double high,
                        bool open_low, const std::string& expected, const std::string& help) {
  const auto check = [=](std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool in_range = value <= high && (open_low ? value > low : value >= low);
    if (!text.empty() && *end == '\0' && std::isfinite(value) && in_range && !std::isspace(text[0]))
      return "";
    return "expected " + expected + ", got '" + text + "'";
  };
  return app.add_option(both_spellings(names), target, help)
      ->check(CLI::Validator(check, ""))
      ->type_name("X");
}

/// Help without the underscored spellings, which would only double it.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    const auto& names = option->get_lnames();
    return positional || names.empty() ? CLI::Formatter::make_option_name(option, positional)
                                       : "--" + names.front();
  }
};

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
  add_number(app, "--timeout", timeout_seconds, 0, 1e9, true, "seconds above 0",
             "seconds a collective, or the ranks' meeting, may take before the run fails")
      ->capture_default_str();
}

void add_mnist(CLI::App& app, Config& config, double& timeout_seconds) {
  auto* mnist = app.add_subcommand("mnist", "the MNIST CNN, on MNIST or Fashion-MNIST");
  mnist->footer(
      "--data takes a folder with the four IDX files, mnist or fashion-mnist; without it MNIST is used where "
      "it is\n"
      "found ($DDPRUN_DATA/mnist, the cache folder), else Fashion-MNIST.");
  add_common_flags(*mnist, config, timeout_seconds);
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

/// True if there is anything at the path. throws IoError if nobody can tell
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw IoError(path, "cannot be looked up", error.value());
  return found;
}

bool holds_files(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator first(folder, error);
  if (error) throw IoError(folder, "cannot be listed", error.value());
  return first != fs::directory_iterator();
}

bool holds_a_run(const fs::path& folder) {
  return is_there(folder / "metrics.csv") || is_there(folder / "summary.json") ||
         (is_there(folder / "checkpoints") && holds_files(folder / "checkpoints"));
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError(path, "cannot create the run folder", error.value());
}

fs::path default_run_folder(const std::string& task) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y%m%dT%H%M%SZ", &utc);
  const fs::path base = fs::path("runs") / (task + "-" + time);
  // Another run may have started in this second: the folder is ours if it is we who make it.
  make_folders("runs");
  std::error_code error;
  auto folder = base;
  for (int i = 2; !fs::create_directory(folder, error) && !error; ++i)
    folder = base.string() + "-" + std::to_string(i);
  if (error) throw IoError(folder, "cannot create the run folder", error.value());
  return folder;
}

/// Two runs in one folder would spoil each other's files. The lock goes with the process, however it ends.
void lock_for_this_process(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError(folder, "cannot open the run folder", errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw UsageError("--out: another run is using " + folder.string() + " now; expected a folder of its own");
  // Not closed: that would end the lock. A file system without locks has to do without.
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
  json["dropout"] = config.model.dropout ? nlohmann::ordered_json(*config.model.dropout) : nullptr;
  // A path is bytes, JSON is UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::chrono::milliseconds connect_timeout(const Config& config) {
  return std::min<std::chrono::milliseconds>(config.timeout, std::chrono::minutes(5));
}

fs::path make_run_folder(const Config& config) {
  const auto folder = config.train.out.empty() ? default_run_folder(config.task) : config.train.out;
  make_folders(folder);
  lock_for_this_process(folder);
  if (!config.overwrite && holds_a_run(folder))
    throw UsageError("--out: " + folder.string() +
                     " holds a run already; expected another folder, or --overwrite");
  make_folders(folder / "checkpoints");
  for (const auto& path : {folder, folder / "checkpoints"})
    if (::access(path.c_str(), W_OK | X_OK) != 0)
      throw IoError(path, "cannot write to the run folder", errno);
  return folder;
}

}  // namespace ddprun
