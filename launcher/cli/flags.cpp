#include "launcher/cli/flags.h"

#include <iterator>

#include <ddprun/common/settings/toml.h>
#include "launcher/cli/option_values.h"

namespace ddprun::launcher {
namespace {

using settings::boolean;
using settings::parsed;
using settings::Setting;

/// A flag that is read by hand.
Setting raw(const std::string& name) { return settings::unbound(name, Setting::Kind::kScalar); }

/// The same for one that takes no value.
Setting raw_switch(const std::string& name) { return settings::unbound(name, Setting::Kind::kSwitch); }

template <typename Text>
Setting any_text(const std::string& name, Text& target) {
  return parsed(
      name, target, [](const std::string& text) { return std::optional(text); }, "");
}

template <typename Target>
Setting seconds(const std::string& name, Target& target) {
  return parsed(name, target, parse_seconds, "seconds from 0 to 1000000, such as 30 or 1.5");
}

std::vector<Setting> torchrun_flags(Options& options) {
  return {
      raw("nnodes"),
      parsed("nproc-per-node", options.nproc_per_node, parse_nproc,
             "a number from 1 to " + std::to_string(kMaxWorkersPerNode) + ", cpu, gpu or auto"),
      raw("node-rank"),
      raw("master-addr"),
      parsed("master-port", options.master_port, parse_port, "a port from 1 to 65535"),
      raw("local-addr").or_empty(),
      raw("rdzv-backend"),
      raw("rdzv-endpoint").or_empty(),
      any_text("rdzv-id", options.run_id).or_empty(),
      raw("rdzv-conf").or_empty(),
      raw_switch("standalone"),
      parsed("max-restarts", options.restart.max_restarts, parse_count, "a number from 0 to 1000000"),
      raw("monitor-interval"),
      raw("start-method"),
      raw("event-log-handler"),
      any_text("role", options.role).or_empty(),
      raw_switch("module").short_flag("-m"),
      raw_switch("no-python"),
      raw_switch("run-path"),
      raw("log-dir"),
      raw("redirects").short_flag("-r"),
      raw("tee").short_flag("-t"),
      raw("local-ranks-filter").or_empty(),
      raw("duplicate-stdout-filters").or_empty(),
      raw("duplicate-stderr-filters").or_empty(),
      raw("logs-specs"),
      parsed("numa-binding", options.numa_binding, parse_numa_binding,
             "node, socket, exclusive or core-complex"),
      parsed("signals-to-handle", options.ending_signals, parse_signals,
             "names of signals, such as SIGUSR1,SIGUSR2"),
      boolean("virtual-local-rank", options.virtual_local_rank),
  };
}

std::vector<Setting> own_flags(Options& options) {
  OutputOptions& output = options.output;
  NodesOptions& nodes = options.nodes;
  Setting prefix = parsed("prefix", output.prefix, parse_truth, "true or false");
  prefix.kind = Setting::Kind::kSwitch;
  Setting no_prefix = raw_switch("prefix");
  no_prefix.negated = true;
  return {
      parsed("join-timeout", nodes.join_timeout, parse_positive_seconds,
             "seconds from 1 to 1000000, such as 30 or 1.5"),
      seconds("last-call", nodes.last_call),
      parsed("node-timeout", nodes.node_timeout, parse_positive_seconds,
             "seconds from 1 to 1000000, such as 30 or 1.5"),
      raw("token-file"),
      seconds("shutdown-timeout", options.shutdown_timeout),
      parsed("forward-signals", options.forwarded_signals, parse_signals,
             "names of signals, such as SIGUSR1,SIGUSR2, or none"),
      seconds("timeout", options.timeout),
      seconds("hang-timeout", options.hang_timeout),
      seconds("restart-backoff", options.restart.backoff),
      seconds("restart-window", options.restart.window),
      raw("restart-on-codes"),
      prefix,
      no_prefix,
      boolean("timestamp", output.timestamps),
      parsed("log-max-size", output.log_max_size, parse_bytes, "bytes, such as 1000000, 500K, 100M or 2G"),
      any_text("result-json", options.result_json),
      any_text("events-json", options.events_json),
      boolean("expand", options.expand),
      boolean("dry-run", options.dry_run),
      raw("config").not_in_file(),
      settings::help_flag(),
      raw_switch("version").not_in_file(),
      settings::unbound("program", Setting::Kind::kList).not_a_flag(),
  };
}

}  // namespace

settings::Command make_command(Options& options) {
  settings::Command command;
  command.name = "ddprun";
  command.settings = torchrun_flags(options);
  for (Setting& setting : own_flags(options)) command.settings.push_back(std::move(setting));
  // "--token=SECRET" is a mistake by which the secret would be taken for a file's name, and shown.
  for (Setting& setting : command.settings) setting.may_be_short = setting.name != "token-file";
  command.positionals = {{"program", "PROGRAM"}};
  command.flags_first = true;
  return command;
}

CommandLine read_command_line(const std::vector<std::string>& words, const EnvLookup& environment,
                              const settings::Command& command) {
  const settings::Values typed = read_words(words, command);
  Options unused;
  CommandLine line;
  settings::Values upper = read_variables("PET_", environment, torchrun_flags(unused));
  upper.overlay(read_variables("DDPRUN_", environment, command.settings));
  upper.overlay(typed);
  if (upper.given("config") && !upper.is_true("help"))
    line.values = settings::read_toml(upper.text("config"), command);
  line.values.overlay(upper);
  line.program = line.values.texts("program");
  // Only now: an empty value takes away what a layer below it says.
  line.values.drop_empty();
  return line;
}

}  // namespace ddprun::launcher
