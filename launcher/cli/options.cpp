#include "launcher/cli/options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using settings::boolean;
using settings::parsed;
using settings::Setting;
using settings::Values;

// -- values --

std::optional<WorkersWanted> parse_nproc(const std::string& text) {
  using Kind = WorkersWanted::Kind;
  if (text == "cpu") return WorkersWanted{Kind::kCpu, 0};
  if (text == "gpu") return WorkersWanted{Kind::kGpu, 0};
  if (text == "xpu") return WorkersWanted{Kind::kXpu, 0};
  if (text == "auto") return WorkersWanted{Kind::kAuto, 0};
  const auto count = parse_integer(text, 1, kMaxWorkersPerNode);
  return count ? std::optional(WorkersWanted{Kind::kCount, *count}) : std::nullopt;
}

std::optional<int> parse_port(const std::string& text) { return parse_integer(text, 1, 65535); }

/// "500", "500K", "100M", "2G"; at least 1.
std::optional<std::size_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMG";
  const auto unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit != kUnits.npos) text.remove_suffix(1);
  const auto shift = unit == kUnits.npos ? 0 : 10 * (unit + 1);
  const auto value = parse_integer<std::size_t>(text, 1, std::size_t{1} << 62 >> shift);
  return value ? std::optional(*value << shift) : std::nullopt;
}

/// "SIGTERM,INT,10"; "none" is an empty list. Rejects SIGKILL, SIGSTOP and SIGCHLD, which ddprun cannot
/// handle.
std::optional<std::vector<int>> parse_signals(const std::string& text) {
  std::vector<int> signals;
  if (text == "none") return signals;
  for (const std::string& word : split(text, ',')) {
    const auto number = parse_integer(word, 1, SIGRTMAX);
    const auto signal = number ? number : signal_by_name(word);
    if (!signal || *signal == SIGKILL || *signal == SIGSTOP || *signal == SIGCHLD) return {};
    signals.push_back(*signal);
  }
  return signals;
}

/// "torch,torch.nn,warm/up.py"
std::optional<std::vector<std::string>> parse_modules(const std::string& text) {
  const auto in_names = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c >= 0x80; };
  std::vector<std::string> modules;
  for (const std::string& module : split(text, ',')) {
    if (!module.ends_with(".py"))
      for (const std::string& name : split(module, '.'))
        if (name.empty() || !std::ranges::all_of(name, in_names)) return {};
    modules.push_back(module);
  }
  return modules;
}

/// "0,2-3,GPU-1b2c"
std::optional<std::vector<std::string>> parse_gpus(const std::string& text) {
  constexpr int kMostGpus = 1024;
  std::vector<std::string> gpus;
  for (const std::string& word : split(text, ',')) {
    if (word.starts_with("GPU-") || word.starts_with("MIG-")) {
      gpus.push_back(word);
      continue;
    }
    const auto dash = word.find('-');
    const auto first = parse_integer(word.substr(0, dash), 0, kMostGpus - 1);
    const auto last =
        dash == std::string::npos ? first : parse_integer(word.substr(dash + 1), 0, kMostGpus - 1);
    if (!first || !last || *first > *last) return {};
    for (int gpu = *first; gpu <= *last; ++gpu) gpus.push_back(std::to_string(gpu));
    if (gpus.size() > kMostGpus) return {};
  }
  return gpus;
}

std::optional<NumaBinding> parse_numa_binding(const std::string& text) {
  for (std::size_t i = 0; i < kNumaBindings.size(); ++i)
    if (text == kNumaBindings[i]) return static_cast<NumaBinding>(i);
  return {};
}

/// "9400", "0.0.0.0:9400", "[::1]:9400", "127.0.0.1:0"
std::optional<Endpoint> parse_metrics_port(const std::string& text) {
  if (const auto port = parse_integer(text, 0, 65535)) return Endpoint{"127.0.0.1", *port};
  const bool any_port = text.ends_with(":0");
  auto endpoint = parse_endpoint(any_port ? text.substr(0, text.size() - 2) : text, 0);
  if (!endpoint || (endpoint->port == 0) != any_port) return {};
  if (endpoint->host == "localhost") endpoint->host = "127.0.0.1";
  in6_addr address{};  // room for both kinds
  const bool is_address = ::inet_pton(AF_INET, endpoint->host.c_str(), &address) == 1 ||
                          ::inet_pton(AF_INET6, endpoint->host.c_str(), &address) == 1;
  return is_address ? endpoint : std::nullopt;
}

std::optional<int> parse_local_rank(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : parse_integer(text, 0, kMaxWorkersPerNode - 1);
}

std::optional<Streams> parse_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return {};
  const int bits = text[0] - '0';
  return Streams{(bits & 1) != 0, (bits & 2) != 0};
}

// -- the table --

constexpr const char* kSignals =
    "signals such as USR1,SIGTERM,10, or none; not KILL, STOP or CHLD, which cannot be handled";

/// 0 would end or restart the job immediately.
settings::Range seconds_above_0() { return {0, 1'000'000, true, "seconds above 0, such as 30 or 1.5"}; }

/// A flag that the program reads itself.
Setting raw(const std::string& name) { return settings::unbound(name, Setting::Kind::kScalar); }
Setting raw_switch(const std::string& name) { return settings::unbound(name, Setting::Kind::kSwitch); }

std::vector<Setting> torchrun_flags(Options& options) {
  OutputOptions& output = options.output;
  return {
      raw("nnodes"),
      parsed("nproc-per-node", options.nproc_per_node, parse_nproc,
             "a number from 1 to " + std::to_string(kMaxWorkersPerNode) + ", cpu, gpu, xpu or auto")
          .known_as(
              {"-n", "--np", "--nprocs", "--ntasks", "--num-processes", "--num-gpus"}),  // "-n" is also "-np"
      raw("node-rank"),
      raw("master-addr"),
      parsed("master-port", options.master_port, parse_port, "a port from 1 to 65535"),
      raw("local-addr").or_empty(),
      raw("rdzv-backend"),
      raw("rdzv-endpoint").or_empty(),
      settings::text("rdzv-id", options.run_id).or_empty(),
      raw("rdzv-conf").or_empty(),
      raw_switch("standalone"),
      settings::integer("max-restarts", options.restart.max_restarts, 0, 1'000'000, ""),
      raw("monitor-interval"),
      raw("start-method"),
      raw("event-log-handler"),
      settings::text("role", options.role).or_empty(),
      raw_switch("module").short_flag("-m"),
      raw_switch("no-python"),
      raw_switch("run-path"),
      raw("log-dir"),
      parsed("redirects", output.redirects, parse_stream_selection, kStreamSelections).short_flag("-r"),
      parsed("tee", output.tee, parse_stream_selection, kStreamSelections).short_flag("-t"),
      parsed("local-ranks-filter", output.shown, parse_local_ranks, kLocalRanks).or_empty(),
      parsed("duplicate-stdout-filters", output.stdout_filters, parse_line_filters, "").or_empty(),
      parsed("duplicate-stderr-filters", output.stderr_filters, parse_line_filters, "").or_empty(),
      raw("logs-specs"),
      settings::text("log-line-prefix-template", output.prefix_template).or_empty(),
      parsed("numa-binding", options.numa_binding, parse_numa_binding,
             "node, socket, exclusive or core-complex"),
      parsed("signals-to-handle", options.ending_signals, parse_signals, kSignals),
      settings::seconds("shutdown-timeout", options.shutdown_timeout, seconds_from(0)),
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
      settings::seconds("join-timeout", nodes.join_timeout, seconds_from(1)),
      settings::integer("spares", nodes.spares, 0, 1000, ""),
      settings::seconds("last-call", nodes.last_call, seconds_from(0)),
      settings::seconds("node-timeout", nodes.node_timeout, seconds_from(1)),
      raw("token-file"),
      raw("hosts"),
      raw("hostfile"),
      parsed("ssh", options.hosts.ssh, parse_ssh,
             "a command that takes a host and a command, such as ssh -p 2222"),
      parsed("ssh-env", options.hosts.env, parse_variable_names,
             "names of variables separated by commas; a '*' at the end stands for any ending, as in "
             "NCCL_*,HF_HOME"),
      settings::text("ssh-ddprun", options.hosts.ddprun),
      parsed("exclude", options.exclude, parse_excluded,
             "names or addresses of hosts separated by commas, such as node3,gpu[01-03]")
          .or_empty(),
      parsed("gpus", options.gpus, parse_gpus,
             "numbers of GPUs, ranges or UUIDs (GPU-..., MIG-...), such as 0,2-3"),
      parsed("forward-signals", options.forwarded_signals, parse_signals, kSignals),
      boolean("signal-group", options.signal_group),
      settings::seconds("timeout", options.timeout, seconds_above_0()),
      settings::seconds("hang-timeout", options.hang_timeout, seconds_above_0()),
      settings::seconds("restart-backoff", options.restart.backoff, seconds_from(0)),
      settings::seconds("restart-window", options.restart.window, seconds_above_0()),
      raw("restart-on-codes"),
      settings::integer("max-stalled-restarts", options.restart.max_stalled, 1, 1000, ""),
      settings::choice<Recover>("recover", options.recover,
                                {{"all", Recover::kAll}, {"rank", Recover::kRank}}),
      settings::integer("standby", options.standby, 0, 1024, ""),
      parsed(
          "preload", options.preload, parse_modules,
          "names of Python modules separated by commas, such as torch,transformers, or files that end in .py")
          .or_empty(),
      parsed("preflight", options.preflight, parse_preflight,
             "checks separated by commas (" +
                 joined({kPreflightChecks.begin(), kPreflightChecks.end()}, ", ") +
                 "), or a shell command (a program whose name resembles a check needs its path: ./NAME)")
          .or_empty(),
      settings::seconds("preflight-timeout", options.preflight_timeout, seconds_above_0()),
      prefix,
      no_prefix,
      boolean("timestamp", output.timestamps),
      parsed("log-max-size", output.log_max_size, parse_bytes,
             "a size of at least 1 byte, such as 1000000, 500K, 100M or 2G"),
      settings::path("result-json", options.result_json),
      settings::path("events-json", options.events_json),
      parsed("metrics-port", options.metrics, parse_metrics_port,
             "a port, or ADDRESS:PORT such as 0.0.0.0:9400"),
      boolean("expand", options.expand),
      boolean("dry-run", options.dry_run).only_typed(),
      boolean("show-ranks", options.show_ranks),
      raw("print-completion").only_typed(),
      raw("config").not_in_file(),
      settings::help_flag(),
      raw_switch("version").only_typed(),
      settings::unbound("program", Setting::Kind::kList).not_a_flag(),
  };
}

/// What torchrun reads from variables of other names, where neither a flag nor a file says it.
Values read_torchruns_variables(const EnvLookup& environment, const settings::Command& command) {
  const std::map<std::string, std::string> variables = {
      {"shutdown-timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
      {"log-line-prefix-template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
  };
  Values values;
  for (const Setting& setting : command.settings)
    if (const auto variable = variables.find(setting.name); variable != variables.end())
      if (const auto text = environment(variable->second)) values.add(setting, {*text, variable->second});
  return values;
}

// -- what depends on several flags --

/// Notes flags and variables of torchrun that have no effect here.
void note_without_effect(const Values& values, const EnvLookup& environment,
                         std::vector<std::string>& notes) {
  const std::pair<const char*, const char*> reasons[] = {
      {"monitor-interval", "ddprun does not poll"},
      {"start-method", "every worker is its own process"},
      {"run-path", "every script runs in its own process"},
      {"event-log-handler", "see --events-json"},
      {"logs-specs", "see --log-dir, --redirects and --tee"},
  };
  for (const auto& [name, reason] : reasons)
    if (values.given(name)) notes.push_back("--" + std::string(name) + " has no effect: " + reason);
  constexpr const char* kKernelTimeout = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
  if (!environment(kKernelTimeout).value_or("").empty())
    notes.push_back(std::string(kKernelTimeout) +
                    " has no effect: --hang-timeout also ends workers that are stuck in the kernel, if they "
                    "send heartbeats or all workers are silent");
}

/// Beyond this host, metrics require the token.
void protect_metrics(const Values& values, const EnvLookup& environment, Options& options) {
  if (!options.metrics || options.metrics->host.starts_with("127.") || options.metrics->host == "::1") return;
  options.metrics_token = options.hosts.channel >= 0 ? options.hosts.token : read_token(values, environment);
  if (options.metrics_token.empty())
    values.reject("metrics-port", "a loopback address, or a token (--token-file, DDPRUN_TOKEN)");
}

void note_recover(Options& options) {
  if (options.standby > 0 && options.recover == Recover::kAll)
    options.notes.emplace_back("--standby has no effect without --recover=rank");
  if (options.recover == Recover::kAll) return;
  if (options.restart.max_restarts == 0 && (options.nodes.spares == 0 || !options.nodes.several()))
    options.notes.emplace_back("--recover=rank has no effect without --max-restarts");
}

/// A signal either ends the job or is passed on. The user's choice wins over a default.
void settle_signals(const Values& values, Options& options) {
  std::vector<int>& ending = options.ending_signals;
  std::vector<int>& forwarded = options.forwarded_signals;
  const auto contains = [](const std::vector<int>& list, int signal) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (!values.given("forward-signals")) {
    std::erase_if(forwarded, [&](int signal) { return contains(ending, signal); });
  } else if (!values.given("signals-to-handle")) {
    std::erase_if(ending, [&](int signal) { return contains(forwarded, signal); });
  } else {
    for (const int signal : forwarded)
      if (contains(ending, signal))
        throw UsageError(values.source("forward-signals") + ": " + signal_name(signal) +
                         " is also in --signals-to-handle; expected it in only one of them");
  }
}

void read_sources(const Values& values, Options& options) {
  if (values.given("result-json")) options.result_json_source = values.source("result-json");
  if (values.given("events-json")) options.events_json_source = values.source("events-json");
}

void read_output(const Values& values, OutputOptions& output) {
  output.log_dir_given = values.given("log-dir");
  if (output.log_dir_given) output.log_dir_source = values.source("log-dir");
  const bool needs_files =
      output.redirects.any() || !output.stdout_filters.empty() || !output.stderr_filters.empty();
  output.log_dir = values.text("log-dir", needs_files ? kDefaultLogDir : "");
  if (output.log_dir == "/dev/null") output.log_dir.clear();  // torchrun's way to request no files
}

void read_program(const Values& values, Options& options) {
  options.program = values.texts("program");
  if (options.program.empty())
    throw UsageError("no program given: expected ddprun [flags] PROGRAM [arguments]");
  const bool module = values.is_true("module"), no_python = values.is_true("no-python");
  if (module && no_python)
    throw UsageError("--module: cannot be used with --no-python, which runs the program as it is");
  if (module) {
    options.program_kind = ProgramKind::kPythonModule;
  } else if (!no_python && options.program[0].size() > 3 && options.program[0].ends_with(".py")) {
    options.program_kind = ProgramKind::kPythonScript;
  }
  if (options.preload.empty() || options.program_kind != ProgramKind::kExecutable) return;
  if (!no_python)
    throw UsageError(
        values.source("preload") +
        ": expected a Python program, which is a file that ends in .py, or -m and a module; got " +
        single_quoted(options.program[0]));
  options.notes.emplace_back("--preload has no effect with --no-python, which runs the program as it is");
  options.preload.clear();
}

/// Flags after the script are the script's, which surprises whoever wanted to give them to ddprun.
void note_flags_after_program(const Values& values, const settings::Command& command, Options& options) {
  constexpr const char* kOnlyLaunchers[] = {
      "nproc-per-node", "nnodes",       "node-rank",    "rdzv-endpoint", "rdzv-backend",    "rdzv-id",
      "rdzv-conf",      "max-restarts", "hang-timeout", "numa-binding",  "restart-on-codes"};
  const std::string& program = options.program[0];
  // An executable may be a launcher itself, and so may some modules.
  if (options.program_kind == ProgramKind::kExecutable || program.starts_with("torch.distributed") ||
      program.starts_with("ddprun"))
    return;
  for (const std::string& word : options.program) {
    const std::string name = with_dashes(word.substr(0, word.find('=')));
    for (const char* flag : kOnlyLaunchers)
      if (name == std::string("--") + flag && !values.given(flag))
        return options.notes.push_back(printable(word) + " comes after " + printable(program) +
                                       ", so it goes to that program; ddprun's flags come before it");
  }
  const std::string first = options.program.size() > 1 ? options.program[1] : "",
                    name = with_dashes(first.substr(0, first.find('=')));
  for (const Setting& setting : command.settings)
    if (setting.is_flag && setting.flag() == name) options.misplaced_flag = name;
}

}  // namespace

bool StreamSelection::any() const {
  const auto some = [](const Streams& streams) { return streams.out || streams.err; };
  return some(others) ||
         std::any_of(by_rank.begin(), by_rank.end(), [&](const auto& entry) { return some(entry.second); });
}

Streams StreamSelection::of(int local_rank) const {
  const auto found = by_rank.find(local_rank);
  return found == by_rank.end() ? others : found->second;
}

std::optional<StreamSelection> parse_stream_selection(const std::string& text) {
  if (const auto all = parse_streams(text)) return StreamSelection{*all, {}};
  StreamSelection selection;
  for (const std::string_view piece : split(text, ',')) {
    const auto colon = piece.find(':');
    if (colon == std::string_view::npos) return {};
    const auto rank = parse_local_rank(piece.substr(0, colon));
    const auto streams = parse_streams(piece.substr(colon + 1));
    if (!rank || !streams || !selection.by_rank.emplace(*rank, *streams).second) return {};
  }
  return selection;
}

bool PreflightWanted::has(std::string_view check) const {
  return std::ranges::find(checks, check) != checks.end();
}

std::optional<PreflightWanted> parse_preflight(const std::string& text) {
  const std::vector<std::string> known(kPreflightChecks.begin(), kPreflightChecks.end());
  const auto is_check = [&](const auto& word) { return std::ranges::find(known, word) != known.end(); };
  const auto in_words = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == ' ';
  };
  PreflightWanted wanted;
  bool plain = true;
  for (const std::string& part : split(text, ',')) {
    wanted.checks.emplace_back(trimmed(part));
    plain =
        plain && std::ranges::all_of(part, in_words) && wanted.checks.back().find(' ') == std::string::npos;
  }
  if (std::ranges::all_of(wanted.checks, is_check)) return wanted;
  const bool mistyped = wanted.checks.size() > 1 || !settings::did_you_mean(wanted.checks[0], known).empty();
  if (plain && mistyped) return {};
  return PreflightWanted{{}, text};
}

std::optional<std::set<int>> parse_local_ranks(const std::string& text) {
  std::set<int> ranks;
  for (const std::string_view piece : split(text, ',')) {
    const auto rank = parse_local_rank(piece);
    if (!rank) return {};
    ranks.insert(*rank);
  }
  return ranks;
}

std::optional<std::vector<std::string>> parse_line_filters(const std::string& text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  // An empty text would be in every line.
  std::erase_if(filters, [](const std::string& filter) { return filter.empty(); });
  return filters;
}

settings::Command make_command(Options& options) {
  settings::Command command;
  command.name = "ddprun";
  command.settings = torchrun_flags(options);
  for (Setting& setting : own_flags(options)) command.settings.push_back(std::move(setting));
  for (Setting& setting : command.settings) {
    // "--token=SECRET" is a mistake that would reveal the secret as a file name.
    setting.may_be_short = setting.name != "token-file";
    if (setting.kind != Setting::Kind::kSwitch && setting.kind != Setting::Kind::kList)
      setting.kind = Setting::Kind::kScalar;  // a file may quote a number, or not quote a name
  }
  command.positionals = {{"program", "PROGRAM"}};
  command.flags_first = true;
  return command;
}

Values read_command_line(const std::vector<std::string>& words, const EnvLookup& environment,
                         const settings::Command& command) {
  const Values typed = read_words(words, command);
  Options unused;
  Values upper = read_variables("PET_", environment, torchrun_flags(unused));
  upper.overlay(read_variables("DDPRUN_", environment, command.settings));
  upper.overlay(typed);
  Values values = read_torchruns_variables(environment, command);
  if (upper.given("config") && !upper.is_true("help"))
    values.overlay(
        for_flag(upper.source("config"), [&] { return settings::read_toml(upper.text("config"), command); }));
  values.overlay(upper);
  values.drop_empty();  // only now: an empty value removes the value of a lower layer
  return values;
}

std::vector<std::string> unknown_variables(const std::vector<std::string>& environment) {
  std::vector<std::string> names;
  for (const std::string& variable : environment) {
    const std::string name = variable.substr(0, variable.find('='));
    if (name == kJobIdVariable) return {};  // the outer ddprun has already named them
    if (name.starts_with("DDPRUN_") && !name.starts_with("DDPRUN_TEST_")) names.push_back(name);
  }
  if (names.empty()) return names;
  std::set<std::string> known = {kTokenVariable,       "DDPRUN_STORE_FD",        "DDPRUN_HEARTBEAT_FD",
                                 "DDPRUN_STATUS_FD",   "DDPRUN_ROUND_FD",        "DDPRUN_ROUND",
                                 "DDPRUN_STATE_FD",    "DDPRUN_SHARED_MEMORY",   "DDPRUN_FLIGHT_DIR",
                                 "DDPRUN_CUDA_PLUGIN", "DDPRUN_SYNC_DEBUG_MODE", "DDPRUN_DATA",
                                 "DDPRUN_DATA_MIRROR", "DDPRUN_CONTROL_DIR",     "DDPRUN_STANDBY_FD"};
  Options unused;
  for (const Setting& setting : make_command(unused).settings)
    if (setting.is_flag) known.insert(settings::variable_name("DDPRUN_", setting));
  std::erase_if(names, [&](const std::string& name) { return known.count(name) > 0; });
  for (std::string& name : names) name += settings::did_you_mean(name, {known.begin(), known.end()});
  return names;
}

std::vector<std::string> variables_of_flags(const std::vector<std::string>& environment) {
  std::vector<std::string> found;
  for (const std::string& variable : environment)
    if (variable.starts_with("DDPRUN_") || variable.starts_with("PET_")) found.push_back(variable);
  if (found.empty()) return found;
  Options unused;
  std::set<std::string> names;
  for (const Setting& setting : make_command(unused).settings)
    if (setting.is_flag && setting.in_variables)
      for (const char* prefix : {"DDPRUN_", "PET_"}) names.insert(settings::variable_name(prefix, setting));
  std::erase_if(found, [&](const std::string& variable) {
    return names.count(variable.substr(0, variable.find('='))) == 0;
  });
  return found;
}

Options parse_options(const std::vector<std::string>& arguments, const EnvLookup& environment,
                      const StartOrder* order) {
  Options options;
  const settings::Command command = make_command(options);
  const Values values = read_command_line(arguments, environment, command);
  options.help = values.is_true("help");
  options.version = values.is_true("version");
  values.read("print-completion", "bash or zsh", completion_script, options.completion);
  if (options.help || options.version || !options.completion.empty()) return options;
  values.apply(command.settings);
  note_without_effect(values, environment, options.notes);
  if (values.given("restart-on-codes"))
    options.restart.codes =
        parse_restart_codes(values.text("restart-on-codes"), values.source("restart-on-codes"));
  read_hosts(values, environment, order, options);
  options.hosts.words = arguments;
  read_nodes(values, environment, options);
  note_recover(options);
  if (values.given("max-stalled-restarts") && options.restart.max_restarts == 0)
    options.notes.emplace_back("--max-stalled-restarts has no effect without --max-restarts");
  protect_metrics(values, environment, options);
  settle_signals(values, options);
  read_output(values, options.output);
  read_sources(values, options);
  read_program(values, options);
  note_flags_after_program(values, command, options);
  return options;
}

}  // namespace ddprun::launcher
