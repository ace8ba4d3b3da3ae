#include "launcher/cli/options.h"

#include <algorithm>

#include <ddprun/common/errors.h>
#include "launcher/cli/option_values.h"
#include "launcher/cli/settings.h"
#include "launcher/cli/stream_selection.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {
namespace {

const std::string kSeconds = "seconds from 0 to 1000000, such as 30 or 1.5";

/// Flags that scripts pass to torchrun and that change nothing here.
void note_without_effect(const Settings& settings, std::vector<std::string>& notes) {
  const std::pair<const char*, const char*> reasons[] = {
      {"--monitor-interval", "ddprun does not poll"},
      {"--start-method", "every worker is a program of its own"},
      {"--run-path", "a script is run as a program of its own"},
      {"--event-log-handler", "see --events-json"},
      {"--logs-specs", "see --log-dir, --redirects and --tee"},
  };
  for (const auto& [name, reason] : reasons)
    if (settings.given(name)) notes.push_back(std::string(name) + " has no effect: " + reason);
}

/// A signal ends the job or is passed on: of a default and what the user says, the user's word counts.
void read_signals(const Settings& settings, Options& options) {
  const std::string expected = "names of signals, such as SIGUSR1,SIGUSR2";
  settings.read("--signals-to-handle", expected, parse_signals, options.ending_signals);
  settings.read("--forward-signals", expected + ", or none", parse_signals, options.forwarded_signals);
  std::vector<int>& ending = options.ending_signals;
  std::vector<int>& forwarded = options.forwarded_signals;
  const auto contains = [](const std::vector<int>& list, int signal) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (!settings.given("--forward-signals")) {
    std::erase_if(forwarded, [&](int signal) { return contains(ending, signal); });
  } else if (!settings.given("--signals-to-handle")) {
    std::erase_if(ending, [&](int signal) { return contains(forwarded, signal); });
  } else if (std::any_of(ending.begin(), ending.end(),
                         [&](int signal) { return contains(forwarded, signal); })) {
    settings.reject("--forward-signals", "other signals than --signals-to-handle");
  }
}

void read_restarts(const Settings& settings, RestartSettings& restart) {
  settings.read("--max-restarts", "a number from 0 to 1000000", parse_count, restart.max_restarts);
  settings.read("--restart-backoff", kSeconds, parse_seconds, restart.backoff);
  settings.read("--restart-window", kSeconds, parse_seconds, restart.window);
  if (settings.given("--restart-on-codes"))
    restart.codes =
        parse_restart_codes(settings.text("--restart-on-codes"), settings.source("--restart-on-codes"));
}

void read_output(const Settings& settings, OutputOptions& output) {
  if (settings.given("--log-dir")) output.log_dir = settings.text("--log-dir");
  output.redirects = settings.text("--redirects", "0");
  output.tee = settings.text("--tee", "0");
  output.local_ranks_filter = settings.text("--local-ranks-filter");
  for (const char* name : {"--redirects", "--tee"})
    if (settings.given(name)) parse_stream_selection(settings.source(name), settings.text(name));
  if (settings.given("--local-ranks-filter"))
    parse_local_ranks(settings.source("--local-ranks-filter"), output.local_ranks_filter);
  output.stdout_filters = settings.text("--duplicate-stdout-filters");
  output.stderr_filters = settings.text("--duplicate-stderr-filters");
  if (settings.given("--prefix")) output.prefix = settings.is_true("--prefix");
  output.timestamps = settings.is_true("--timestamp");
  settings.read("--log-max-size", "bytes, such as 1000000, 500K, 100M or 2G", parse_bytes,
                output.log_max_size);
}

void read_program(const Settings& settings, const CommandLine& line, Options& options) {
  if (line.program.empty()) throw UsageError("no program given: expected ddprun [flags] PROGRAM [arguments]");
  options.program = line.program;
  options.expand = settings.is_true("--expand");
  const bool module = settings.is_true("--module"), no_python = settings.is_true("--no-python");
  if (module && no_python)
    throw UsageError("--module: expected without --no-python, which runs the program as it is");
  const std::string& name = line.program[0];
  if (module) {
    options.program_kind = ProgramKind::kPythonModule;
  } else if (!no_python && name.size() > 3 && name.substr(name.size() - 3) == ".py") {
    options.program_kind = ProgramKind::kPythonScript;
  }
}

Options interpret(const CommandLine& line, const EnvLookup& environment) {
  const Settings settings(line);
  Options options;
  options.help = settings.is_true("--help");
  options.version = settings.is_true("--version");
  if (options.help || options.version) return options;
  note_without_effect(settings, options.notes);
  settings.read("--nproc-per-node",
                "a number from 1 to " + std::to_string(kMaxWorkersPerNode) + ", cpu, gpu or auto",
                parse_nproc, options.nproc_per_node);
  settings.read("--shutdown-timeout", kSeconds, parse_seconds, options.shutdown_timeout);
  settings.read("--timeout", kSeconds, parse_seconds, options.timeout);
  settings.read("--hang-timeout", kSeconds, parse_seconds, options.hang_timeout);
  settings.read("--numa-binding", "node, socket, exclusive or core-complex", numa_binding_name,
                options.numa_binding);
  settings.read("--display", "map", parse_display_map, options.display_map);
  options.run_id = settings.text("--rdzv-id");
  read_nodes(settings, environment, options);
  options.role = settings.text("--role", "default");
  options.result_json = settings.text("--result-json");
  options.events_json = settings.text("--events-json");
  options.virtual_local_rank = settings.is_true("--virtual-local-rank");
  options.dry_run = settings.is_true("--dry-run");
  read_signals(settings, options);
  read_restarts(settings, options.restart);
  read_output(settings, options.output);
  read_program(settings, line, options);
  return options;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const EnvLookup& environment) {
  return interpret(read_command_line(arguments, environment), environment);
}

}  // namespace ddprun::launcher
