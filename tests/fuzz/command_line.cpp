// The command line, the variables and the configuration file: "words <section> NAME=value variables <section>
// TOML text". The file is the one that --config names unless the words or variables name another.
#include <algorithm>
#include <map>

#include <ddprun/common/errors.h>
#include "launcher/cli/options.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

using Words = std::vector<std::string>;

struct Input {
  Words words;
  std::map<std::string, std::string> variables;
  bool has_file = false;
};

/// Fields of a section that may be empty; no argument or variable holds a NUL.
Words fields(const std::string& section) {
  if (section.empty()) return {};
  Words words = split(section, kField);
  for (std::string& word : words) word = word.c_str();
  return words;
}

/// A --config file that is a device could be waited for.
bool names_a_device(const std::string& text) {
  return text.find("/dev") != std::string::npos || text.find("/proc") != std::string::npos;
}

Input read_input(std::string_view text, const ScratchFile& file) {
  auto sections = split(text, kSection, 3);
  sections.resize(3);
  Input input;
  input.words = fields(sections[0]);
  file.write(sections[2]);
  input.has_file = !sections[2].empty();
  if (input.has_file) input.variables["DDPRUN_CONFIG"] = file.path().string();
  for (const std::string& variable : fields(sections[1])) {
    const auto equals = variable.find('=');
    if (equals != std::string::npos)
      input.variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return input;
}

void expect_restarts(const RestartSettings& restart) {
  expect(restart.max_restarts >= 0, "restarts are counted from 0");
  expect(restart.backoff.count() >= 0, "a backoff is not negative");
  if (restart.window) expect(restart.window->count() >= 0, "a window is not negative");
}

void expect_signals(const Options& options) {
  for (const auto* signals : {&options.ending_signals, &options.forwarded_signals})
    for (const int signal : *signals) {
      expect(signal >= 1 && signal <= SIGRTMAX, "a signal has a number", std::to_string(signal));
      expect(signal != SIGKILL && signal != SIGSTOP && signal != SIGCHLD, "a signal can be handled");
    }
  for (const int signal : options.ending_signals) {
    const auto& forwarded = options.forwarded_signals;
    expect(std::find(forwarded.begin(), forwarded.end(), signal) == forwarded.end(),
           "a signal that ends the job is not passed on", std::to_string(signal));
  }
}

void expect_nodes(const Options& options) {
  const NodesOptions& nodes = options.nodes;
  expect(1 <= nodes.min_nodes && nodes.min_nodes <= nodes.max_nodes && nodes.max_nodes <= kMaxNodes,
         "there are nodes, and not too many");
  for (const auto time : {nodes.join_timeout, nodes.node_timeout})
    expect(time >= std::chrono::seconds(1) && time <= std::chrono::seconds(1'000'000), "a time is bounded");
  expect(nodes.last_call.count() >= 0, "a time is not negative");
  if (!nodes.several()) return expect(nodes.token.empty(), "one node has no secret");
  expect(parse_endpoint(to_string(nodes.endpoint), 0) == nodes.endpoint, "an endpoint is read as it is spelt",
         to_string(nodes.endpoint));
  expect(nodes.endpoint.port >= 1 && nodes.endpoint.port <= 65535, "it is a port");
  const int rank = nodes.node_rank.value_or(0);
  expect(rank >= 0 && rank < nodes.max_nodes, "a node's rank is one of the job", std::to_string(rank));
  expect(!options.run_id.empty(), "several nodes have a name for their job");
  expect(nodes.names.empty() || nodes.names.size() == std::size_t(nodes.max_nodes),
         "all names are known or none");
  expect(nodes.first_local_rank >= 0 && nodes.first_local_rank < nodes.local_world_size.value_or(1),
         "a task is one of its node's");
  expect(nodes.group_rank.value_or(0) < nodes.group_world_size.value_or(1), "a node is one of the step's");
}

void expect_options(const Options& options) {
  if (options.help || options.version) return;
  constexpr std::chrono::milliseconds kLongest{1'000'000'000};
  expect(!options.program.empty(), "there is a program");
  const WorkersWanted& wanted = options.nproc_per_node;
  if (wanted.kind == WorkersWanted::Kind::kCount)
    expect(wanted.count >= 1 && wanted.count <= kMaxWorkersPerNode, "workers are not too many");
  if (options.master_port) expect(*options.master_port >= 1 && *options.master_port <= 65535, "it is a port");
  for (const auto& duration :
       {std::optional(options.shutdown_timeout), options.timeout, options.hang_timeout})
    if (duration) expect(duration->count() >= 0 && *duration <= kLongest, "a duration is bounded");
  expect_restarts(options.restart);
  expect_signals(options);
  expect_nodes(options);
  for (const std::string& note : options.notes) expect_message(note);
}

/// The same settings typed out, with underscores, and the program behind "--".
Words typed_out(const settings::Values& values) {
  Words words;
  for (const auto& [name, given] : values.all()) {
    if (name == "config" || name == "program") continue;
    std::string spelt = name;
    std::replace(spelt.begin(), spelt.end(), '-', '_');
    words.push_back("--" + spelt + "=" + given.back().text);
  }
  words.emplace_back("--");
  const Words program = values.texts("program");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

void expect_same_when_typed_out(const settings::Values& values, const settings::Command& command) {
  const settings::Values again = read_command_line(
      typed_out(values), [](const std::string&) { return std::nullopt; }, command);
  expect(again.texts("program") == values.texts("program"), "a program is kept byte for byte");
  for (const auto& [name, given] : values.all()) {
    if (name == "config" || name == "program") continue;
    expect(again.given(name), "a flag that was typed out is read", name);
    expect(again.text(name) == given.back().text, "a flag that was typed out has its value",
           given.back().text);
  }
}

/// Without a file the program is what ends the words.
void expect_program_of_words(const Words& words, const Words& program) {
  expect(program.size() <= words.size() && std::equal(program.rbegin(), program.rend(), words.rbegin()),
         "the program's words come through byte for byte");
}

void run(std::string_view text) {
  static const ScratchFile file;
  const Input input = read_input(text, file);
  if (std::any_of(input.words.begin(), input.words.end(), names_a_device)) return;
  for (const auto& [name, value] : input.variables)
    if (value != file.path().string() && names_a_device(value)) return;
  const EnvLookup lookup = [&](const std::string& name) {
    const auto found = input.variables.find(name);
    return found == input.variables.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    Options options;
    const settings::Command command = make_command(options);
    const settings::Values values = read_command_line(input.words, lookup, command);
    if (!input.has_file) expect_program_of_words(input.words, values.texts("program"));
    expect_same_when_typed_out(values, command);
    expect_options(parse_options(input.words, lookup));
  } catch (const UsageError& error) {
    expect_message(error.what());
  } catch (const IoError&) {
    // A --config file that is not there.
  }
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::run(ddprun::fuzz::text_of(data, size));
  return 0;
}
