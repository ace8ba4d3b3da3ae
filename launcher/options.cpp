#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/errors.h"
#include "common/spelling.h"

namespace ddprun {
namespace {

/// The flags as they were typed; interpret() gives them their meaning.
struct RawOptions {
  std::string nproc_per_node = "1";
  std::string shutdown_timeout = "30";
  std::string nnodes = "1";
  std::string node_rank = "0";
  std::string max_restarts = "0";
  std::string master_addr = "127.0.0.1";
  std::string master_port;
  std::string rdzv_id;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  bool standalone = false;
  bool no_python = false;
  bool help = false;
  bool version = false;
};

void declare_flags(CLI::App& app, RawOptions& raw) {
  app.set_help_flag();  // help_text() is ours
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto value = [&](const char* name, std::string& target) {
    app.add_option(both_spellings(name), target);
  };
  const auto flag = [&](const char* name, bool& target) { app.add_flag(both_spellings(name), target); };
  value("--nproc-per-node", raw.nproc_per_node);
  value("--shutdown-timeout", raw.shutdown_timeout);
  value("--nnodes", raw.nnodes);
  value("--node-rank", raw.node_rank);
  value("--max-restarts", raw.max_restarts);
  value("--master-addr", raw.master_addr);
  value("--master-port", raw.master_port);
  value("--rdzv-id", raw.rdzv_id);
  value("--rdzv-backend", raw.rdzv_backend);
  value("--rdzv-endpoint", raw.rdzv_endpoint);
  flag("--standalone", raw.standalone);
  flag("--no-python", raw.no_python);
  flag("--help,-h", raw.help);
  flag("--version", raw.version);
}

/// The user's text inside a one-line message: no byte of it may break the line or drive the terminal.
std::string quoted(const std::string& text) {
  std::string shown = "'";
  for (const char c : text) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return shown + "'";
}

[[noreturn]] void reject(const std::string& flag, const std::string& expected, const std::string& got) {
  throw UsageError(flag + ": expected " + expected + ", got " + quoted(got));
}

/// Where the program starts, and the words before it with "--flag value" joined to "--flag=value".
struct SplitArguments {
  std::vector<std::string> flags;
  std::vector<std::string> program;
};

// Done here and not by CLI11, which drops a "--" and takes an unknown flag for the program's name.
SplitArguments split_at_program(const CLI::App& app, const std::vector<std::string>& arguments) {
  SplitArguments split;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const std::string name = word.substr(0, word.find('='));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr)
      throw UsageError("unknown flag " + quoted(name) + ": expected one of those that --help lists");
    const bool has_value = name.size() < word.size();
    const bool wants_value = option->get_expected_min() > 0;
    if (has_value && word.size() == name.size() + 1)
      throw UsageError(name + ": expected a value after '=', got none");
    if (has_value || !wants_value) {
      split.flags.push_back(word);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].empty()) {
      split.flags.push_back(word + "=" + arguments[++i]);
    } else {
      throw UsageError(name + ": expected a value, got none");
    }
  }
  split.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i, arguments.size())),
                       arguments.end());
  return split;
}

std::optional<int> whole_number(const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

WorkersWanted parse_nproc(const std::string& text) {
  if (text == "cpu") return {WorkersWanted::Kind::kCpu, 0};
  if (text == "gpu") return {WorkersWanted::Kind::kGpu, 0};
  if (text == "auto") return {WorkersWanted::Kind::kAuto, 0};
  if (const auto count = whole_number(text, 1, kMaxWorkersPerNode))
    return {WorkersWanted::Kind::kCount, *count};
  reject("--nproc-per-node",
         "a number from 1 to " + std::to_string(kMaxWorkersPerNode) + ", cpu, gpu or auto", text);
}

std::chrono::milliseconds parse_seconds(const std::string& flag, const std::string& text) {
  constexpr double kMaxSeconds = 1e6;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0 && seconds <= kMaxSeconds))
    reject(flag, "seconds from 0 to 1000000, such as 30 or 1.5", text);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

bool is_this_host(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.rfind("127.", 0) == 0;
}

/// "HOST", "HOST:PORT" or "[V6]:PORT" of this very host.
void check_endpoint(const std::string& endpoint) {
  const std::string expected = "localhost[:PORT] (one node only in this version)";
  std::string host = endpoint;
  const auto colon = endpoint.rfind(':');
  if (colon != std::string::npos && endpoint != "::1" && endpoint.back() != ']') {
    host = endpoint.substr(0, colon);
    if (!whole_number(endpoint.substr(colon + 1), 0, 65535)) reject("--rdzv-endpoint", expected, endpoint);
  }
  if (!is_this_host(host)) reject("--rdzv-endpoint", expected, endpoint);
}

/// torchrun's flags that leave no choice on one node: accepted with the one value that is true.
void check_single_node(const RawOptions& raw) {
  if (raw.nnodes != "1" && raw.nnodes != "1:1")
    reject("--nnodes", "1 or 1:1 (one node only in this version)", raw.nnodes);
  if (raw.node_rank != "0") reject("--node-rank", "0 (one node only in this version)", raw.node_rank);
  if (raw.max_restarts != "0") reject("--max-restarts", "0 (no restarts in this version)", raw.max_restarts);
  if (raw.rdzv_backend != "c10d" && raw.rdzv_backend != "static")
    reject("--rdzv-backend", "c10d or static", raw.rdzv_backend);
  if (!raw.rdzv_endpoint.empty()) check_endpoint(raw.rdzv_endpoint);
  if (raw.master_addr != "localhost" && raw.master_addr != "127.0.0.1")
    reject("--master-addr", "localhost or 127.0.0.1 (one node only in this version)", raw.master_addr);
}

Options interpret(const RawOptions& raw) {
  Options options;
  options.help = raw.help;
  options.version = raw.version;
  if (raw.help || raw.version) return options;
  check_single_node(raw);
  options.nproc_per_node = parse_nproc(raw.nproc_per_node);
  options.shutdown_timeout = parse_seconds("--shutdown-timeout", raw.shutdown_timeout);
  options.run_id = raw.rdzv_id;
  if (!raw.master_port.empty()) {
    options.master_port = whole_number(raw.master_port, 1, 65535);
    if (!options.master_port) reject("--master-port", "a port from 1 to 65535", raw.master_port);
  }
  return options;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  CLI::App app;
  RawOptions raw;
  declare_flags(app, raw);
  SplitArguments split = split_at_program(app, arguments);
  try {
    std::reverse(split.flags.begin(), split.flags.end());  // CLI11 takes its words from the back
    app.parse(split.flags);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  Options options = interpret(raw);
  if (options.help || options.version) return options;
  if (split.program.empty())
    throw UsageError("no program given: expected ddprun [flags] PROGRAM [arguments]");
  options.program = std::move(split.program);
  return options;
}

std::string help_text() {
  return R"(ddprun: starts N copies of a program with torchrun's environment, and ends them together.

usage: ddprun [flags] [--] PROGRAM [arguments]      (all after PROGRAM is the program's, byte for byte)
  ddprun --standalone --nproc-per-node=2 python train.py --lr 0.1

  --nproc-per-node N|cpu|gpu|auto  workers: a number, one a CPU, one a GPU, or GPUs if any else CPUs [1]
  --shutdown-timeout SECONDS       from SIGTERM to SIGKILL when the job ends early [30]
  --master-port PORT               MASTER_PORT of the workers [a free one, held for the job]
  --rdzv-id ID                     TORCHELASTIC_RUN_ID of the workers [random]
  --version, --help

Every flag also with underscores, as --flag VALUE or --flag=VALUE; the last one counts.
Accepted from torchrun, with the value that one node leaves: --standalone, --no-python, --nnodes 1,
  --node-rank 0, --max-restarts 0, --rdzv-backend c10d|static, --rdzv-endpoint localhost[:PORT] (not used),
  --master-addr localhost

The first worker that fails ends the others, and ddprun exits with its code, or 128 + its signal. Ctrl-C
and SIGTERM end the job; a second one at once. SIGUSR1 and SIGUSR2 are passed on.
exit codes: 2 wrong usage, 125 ddprun's own failure, 126 PROGRAM not executable, 127 PROGRAM not found
)";
}

}  // namespace ddprun
