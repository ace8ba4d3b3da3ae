#include "worker/commands/commands.h"

#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/group/backends.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/local_address.h>
#include <ddprun/group/store.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/train/model/cpu_abilities.h>
#include "worker/commands/network_speed.h"
#include "worker/config/config.h"

namespace ddprun::worker {
namespace {

constexpr const char* kShownVariables =
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "DDPRUN_STORE_FD TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE "
    "GLOO_SOCKET_IFNAME CUDA_VISIBLE_DEVICES OMP_NUM_THREADS";

/// Runs check and records what it throws as a problem. Returns whether it succeeded.
template <typename Check>
bool try_to(EnvReport& report, Check check) {
  try {
    check();
    return true;
  } catch (const std::exception&) {
    report.problems.push_back(describe_failure(std::current_exception()).message);
    return false;
  }
}

/// Reads the variables; records each invalid one and replaces it with a valid value.
void read_variables(EnvReport& report, const EnvLookup& lookup) {
  std::map<std::string, std::string> instead;
  const EnvLookup corrected = [&](const std::string& name) {
    const auto found = instead.find(name);
    return found == instead.end()  ? lookup(name)
           : found->second.empty() ? std::nullopt
                                   : std::optional(found->second);
  };
  const std::map<std::string, std::string> right = {
      {"RANK", "0"}, {"WORLD_SIZE", "16777216"}, {"MASTER_PORT", "29500"}};
  for (;;) {
    try {
      report.env = from_env(corrected);
      return;
    } catch (const UsageError& error) {
      const std::string message = error.what();
      report.problems.push_back(message);
      const auto name = message.substr(0, message.find(':'));
      const auto value = right.find(name);
      if (name == "environment" || !instead.emplace(name, value == right.end() ? "" : value->second).second)
        return;
    }
  }
}

void show_rank(EnvReport& report, const ddp::RankDevice& device, const ddp::CudaDriver& driver,
               const ddp::ProcessGroup::Options& options) {
  const WorkerEnv& env = report.env;
  const auto add = [&](const std::string& name, const std::string& value) {
    report.lines.push_back({"this rank", name, value});
  };
  const auto of = [](int index, int count) { return std::to_string(index) + " of " + std::to_string(count); };
  if (report.problems.empty()) {  // otherwise these could be placeholders for invalid variables
    add("rank", of(env.rank, env.world_size));
    add("local rank",
        of(env.local_rank, env.local_world_size) + " on node " + of(env.group_rank, env.group_world_size));
  }
  const auto abilities = train::cpu_abilities();
  const std::vector<std::string> names(abilities.begin(), abilities.end());
  add("CPUs", std::to_string(std::thread::hardware_concurrency()) +
                  (names.empty() ? "" : " with " + joined(names, ", ")));
  std::string gpus = driver.gpus.empty() ? "none: " + driver.problem : "";
  for (const auto& gpu : driver.gpus)
    gpus += (gpus.empty() ? "" : ", ") + gpu.name + " " + std::to_string(gpu.memory_bytes >> 20) + " MiB";
  add("GPUs", gpus);
  add("device", device.device.str());
  add("store",
      env.world_size == 1 ? "none, a single process" : ddp::describe_meeting_place(env, options.init_method));
}

std::string address_of(const WorkerEnv& env, const std::string& interface) {
  if (!interface.empty()) return "interface " + interface;
  if (env.world_size == 1 || ddp::is_loopback(env.master_addr)) return "127.0.0.1";
  return ddp::local_address_towards(env.master_addr);
}

void check_places(EnvReport& report, const ddp::ProcessGroup::Options& options) {
  const WorkerEnv& env = report.env;
  bool fine = report.problems.empty();
  fine &= try_to(report, [&] { ddp::check_store(env, options.init_method); });
  fine &= try_to(report, [&] {
    report.address = address_of(env, ddp::checked_interface(options.interface));
    report.lines.push_back({"this rank", "address", report.address});
  });
  if (env.group_world_size > 1 && ddp::is_loopback(env.master_addr)) {
    report.problems.push_back("MASTER_ADDR: expected an address that all " +
                              std::to_string(env.group_world_size) + " nodes reach, got '" + env.master_addr +
                              "', which on each node means that node itself");
    fine = false;
  }
  report.can_meet = fine;
}

void show_libraries(EnvReport& report, const ddp::RankDevice& device, const ddp::CudaDriver& driver) {
  const std::string cuda = c10::str(driver.version / 1000, ".", driver.version % 1000 / 10);
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"ddprun", DDPRUN_VERSION},
           {"torch", TORCH_VERSION},
           {"Gloo", "of torch"},
           {"NVIDIA driver", driver.version == 0 ? "none" : "for CUDA " + cuda},
           {"CUDA plug-in", device.device.is_cuda() ? ddp::cuda_plugin().versions() : "not loaded"}})
    report.lines.push_back({"libraries", name, value});
}

RankRow own_row(const EnvReport& report, const std::string& backend, const std::string& device) {
  return {{std::to_string(report.env.rank), host_name(), std::to_string(report.env.local_rank), device,
           backend, report.address, TORCH_VERSION},
          report.problems};
}

std::string encode(const RankRow& row) { return nlohmann::json{row.cells, row.problems}.dump(); }

RankRow decode(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at(0).get<std::vector<std::string>>(), json.at(1).get<std::vector<std::string>>()};
}

/// Finds problems that only show when ranks are compared.
void compare(std::vector<RankRow>& ranks) {
  std::map<std::pair<std::string, std::string>, std::string> place_of;
  for (auto& rank : ranks) {
    const auto& name = rank.cells[0];
    const auto [place, is_new] = place_of.emplace(std::pair(rank.cells[1], rank.cells[2]), name);
    if (!is_new)
      rank.problems.push_back("LOCAL_RANK: expected a different one for each rank of a host, got " +
                              rank.cells[2] + " on " + rank.cells[1] + " for rank " + place->second + " too");
    if (const auto& torch = rank.cells[6]; torch != ranks[0].cells[6])
      rank.problems.push_back("torch: expected " + ranks[0].cells[6] + " as on rank 0, got " + torch);
  }
}

void add_network(EnvReport& report, std::vector<RankRow>& rows, const ddp::ProcessGroup& group) {
  const auto speed = measure_network(group, report.env.group_rank, 1);
  const auto add = [&](const std::string& name, const std::string& value) {
    report.lines.push_back({"network over " + group.backend(), name, value});
  };
  add("all-reduce of 16 MiB", formatted("%.3g GB/s (bus bandwidth)", speed.all_reduce));
  add("all-reduce of 4 bytes", formatted("%.0f us", speed.latency * 1e6));
  const auto slowest = static_cast<std::size_t>(std::ranges::min_element(speed.link) - speed.link.begin());
  add("slowest", formatted("rank %zu on %s, %.3g GB/s to a neighbour", slowest,
                           rows[slowest].cells[1].c_str(), speed.link[slowest]));
  const auto wrong = slow_links(speed.link);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    rows[rank].cells.push_back(formatted("%.3g", speed.link[rank]));
    if (!wrong[rank].empty()) rows[rank].problems.push_back(wrong[rank]);
  }
}

}  // namespace

EnvReport inspect_environment(const EnvLookup& lookup, const ddp::ProcessGroup::Options& options) {
  EnvReport report;
  for (const auto& name : split(kShownVariables, ' '))
    report.lines.push_back({"variables", name, lookup(name).value_or("not set")});
  read_variables(report, lookup);
  const auto driver = ddp::query_cuda_driver();
  ddp::RankDevice device;
  const bool has_device =
      try_to(report, [&] { device = ddp::choose_device(options.device, report.env.local_rank); });
  show_rank(report, device, driver, options);
  check_places(report, options);
  report.can_meet = report.can_meet && has_device;
  show_libraries(report, device, driver);
  return report;
}

std::vector<RankRow> meet_ranks(EnvReport& report, const ddp::ProcessGroup::Options& options, bool network,
                                std::optional<ddp::ProcessGroup>& group) {
  std::vector<RankRow> rows;
  if (report.can_meet) {
    try_to(report, [&] {
      group = ddp::ProcessGroup::connect(report.env, options);
      for (const auto& text :
           ddp::all_gather(*group, encode(own_row(report, group->backend(), group->device().str()))))
        rows.push_back(decode(text));
      if (network && group->size() > 1) add_network(report, rows, *group);
    });
  }
  if (rows.empty()) rows.push_back(own_row(report, "-", "-"));
  compare(rows);
  return rows;
}

std::string to_text(const EnvReport& report, const std::vector<RankRow>& ranks) {
  std::ostringstream out;
  std::string section;
  for (const auto& line : report.lines) {
    if (section != line.section) out << (section = line.section) << '\n';
    out << "  " << std::left << std::setw(30) << line.name << line.value << '\n';
  }
  std::vector<std::vector<std::string>> rows = {kRankColumns};
  rows[0].resize(ranks[0].cells.size());
  for (const auto& rank : ranks) rows.push_back(rank.cells);
  for (auto& row : rows) row[0].insert(0, "  ");
  out << "ranks\n" << in_columns(rows);
  std::vector<std::string> wrong = report.problems;
  if (ranks.size() > 1) {
    wrong.clear();
    for (const auto& rank : ranks)
      for (const auto& problem : rank.problems) wrong.push_back("rank " + rank.cells[0] + ": " + problem);
  }
  for (const auto& problem : wrong) out << "wrong: " << problem << '\n';
  if (wrong.empty()) out << "all is fine\n";
  return out.str();
}

int run_env_command(int argc, char** argv) {
  ddp::ProcessGroup::Options options;
  options.device = ddp::DeviceChoice::kAuto;  // as a training
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  bool network = false;
  settings::Command command;
  command.name = "worker env";
  command.description =
      "prints what a training run would find here, and what is wrong. Exits with 1 if anything is wrong.";
  command.settings = {
      settings::help_flag(),
      device_setting(options.device),
      backend_setting(options.backend),
      settings::seconds("timeout", timeout, kSeconds, "how long to wait for the other ranks"),
      settings::boolean(
          "network", network,
          "measure for about a second how fast the ranks exchange tensors, and name the slowest"),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  options.timeout = options.connect_timeout = timeout;

  EnvReport report = inspect_environment(process_env, options);
  std::optional<ddp::ProcessGroup> group;
  const auto ranks = meet_ranks(report, options, network, group);
  if (ranks.size() == 1 || report.env.rank == 0) write_stdout(to_text(report, ranks));
  // Until rank 0 has printed, no other ends with 1, which would make the launcher end rank 0.
  if (group) try_to(report, [&] { group->close(); });
  const bool fine = report.problems.empty() &&
                    std::ranges::all_of(ranks, [](const RankRow& rank) { return rank.problems.empty(); });
  return fine ? 0 : 1;
}

}  // namespace ddprun::worker
