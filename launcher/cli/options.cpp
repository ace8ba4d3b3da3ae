#include "launcher/cli/options.h"

#include <algorithm>

#include <ddprun/common/errors.h>
#include "launcher/cli/flags.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/stream_selection.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {
namespace {

/// Notes flags of torchrun that have no effect here.
void note_without_effect(const settings::Values& values, std::vector<std::string>& notes) {
  const std::pair<const char*, const char*> reasons[] = {
      {"monitor-interval", "ddprun does not poll"},
      {"start-method", "every worker is its own process"},
      {"run-path", "every script runs in its own process"},
      {"event-log-handler", "see --events-json"},
      {"logs-specs", "see --log-dir, --redirects and --tee"},
  };
  for (const auto& [name, reason] : reasons)
    if (values.given(name)) notes.push_back("--" + std::string(name) + " has no effect: " + reason);
}

/// A signal either ends the job or is passed on. What the user says wins over a default.
void settle_signals(const settings::Values& values, Options& options) {
  std::vector<int>& ending = options.ending_signals;
  std::vector<int>& forwarded = options.forwarded_signals;
  const auto contains = [](const std::vector<int>& list, int signal) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (!values.given("forward-signals")) {
    std::erase_if(forwarded, [&](int signal) { return contains(ending, signal); });
  } else if (!values.given("signals-to-handle")) {
    std::erase_if(ending, [&](int signal) { return contains(forwarded, signal); });
  } else if (std::any_of(ending.begin(), ending.end(),
                         [&](int signal) { return contains(forwarded, signal); })) {
    values.reject("forward-signals", "other signals than --signals-to-handle");
  }
}

void read_output(const settings::Values& values, OutputOptions& output) {
  const auto read_streams = [&](const char* name, StreamSelection& streams) {
    if (values.given(name)) streams = parse_stream_selection(values.source(name), values.text(name));
  };
  read_streams("redirects", output.redirects);
  read_streams("tee", output.tee);
  if (values.given("local-ranks-filter"))
    output.shown = parse_local_ranks(values.source("local-ranks-filter"), values.text("local-ranks-filter"));
  output.stdout_filters = parse_line_filters(values.text("duplicate-stdout-filters"));
  output.stderr_filters = parse_line_filters(values.text("duplicate-stderr-filters"));
  output.log_dir_given = values.given("log-dir");
  const bool needs_files =
      output.redirects.any() || !output.stdout_filters.empty() || !output.stderr_filters.empty();
  output.log_dir = values.text("log-dir", needs_files ? kDefaultLogDir : "");
  if (output.log_dir == "/dev/null") output.log_dir.clear();  // torchrun's way to ask for no files
}

void read_program(const CommandLine& line, Options& options) {
  if (line.program.empty()) throw UsageError("no program given: expected ddprun [flags] PROGRAM [arguments]");
  options.program = line.program;
  const bool module = line.values.is_true("module"), no_python = line.values.is_true("no-python");
  if (module && no_python)
    throw UsageError("--module: expected without --no-python, which runs the program as it is");
  const std::string& name = line.program[0];
  if (module) {
    options.program_kind = ProgramKind::kPythonModule;
  } else if (!no_python && name.size() > 3 && name.substr(name.size() - 3) == ".py") {
    options.program_kind = ProgramKind::kPythonScript;
  }
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const EnvLookup& environment) {
  Options options;
  const settings::Command command = make_command(options);
  const CommandLine line = read_command_line(arguments, environment, command);
  const settings::Values& values = line.values;
  options.help = values.is_true("help");
  options.version = values.is_true("version");
  if (options.help || options.version) return options;
  values.apply(command.settings);
  note_without_effect(values, options.notes);
  if (values.given("restart-on-codes"))
    options.restart.codes =
        parse_restart_codes(values.text("restart-on-codes"), values.source("restart-on-codes"));
  read_nodes(values, environment, options);
  settle_signals(values, options);
  read_output(values, options.output);
  read_program(line, options);
  return options;
}

}  // namespace ddprun::launcher
