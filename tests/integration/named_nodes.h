#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/node_job.h"

namespace ddprun::test {

/// The nodes of a Slurm step, which have names: 127.0.0.1, which has the coordinator, 127.0.0.2 and so on.
class NamedNodes {
 public:
  explicit NamedNodes(int nodes, std::vector<std::string> flags) : nodes_(nodes), flags_(std::move(flags)) {}

  Command of(std::size_t node, Command command) const {
    std::string list;
    for (int i = 0; i < nodes_; ++i) list += (i == 0 ? "" : ",") + name(static_cast<std::size_t>(i));
    const std::string tasks = std::to_string(nodes_), number = std::to_string(node);
    command.argv.insert(command.argv.begin() + 1, flags_.begin(), flags_.end());
    command.env.insert({{"SLURM_JOB_ID", id_},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NUM_TASKS", tasks},
                        {"SLURM_NTASKS", tasks},
                        {"SLURM_STEP_NUM_NODES", tasks},
                        {"SLURM_STEP_NODELIST", list},
                        {"SLURM_STEP_TASKS_PER_NODE", "1(x" + tasks + ")"},
                        {"SLURMD_NODENAME", name(node)},
                        {"SLURM_NODEID", number},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_PROCID", number},
                        {"DDPRUN_CONTROL_DIR", control_folder(node)}});
    return command;
  }
  /// The next node.
  Child& add(Command command) { return jobs_.add(of(jobs_.size(), std::move(command))); }
  /// Two nodes that run it, and a spare.
  void begin_with_spare(const Command& command) {
    for (std::size_t i = 0; i < 2; ++i) add(command);
    for (std::size_t i = 0; i < 2; ++i) REQUIRE(node(i).wait_for_output("ready "));
    add(command);
    REQUIRE(wait_until([this] { return count_of("standing by", node(2).err()) > 0; }));
  }

  Finished ctl(std::size_t node, std::vector<std::string> words) const {
    words.insert(words.begin(), DDPCTL_PROGRAM);
    return Finished(Command{std::move(words), {{"DDPRUN_CONTROL_DIR", control_folder(node)}}});
  }

  static std::string name(std::size_t node) { return "127.0.0." + std::to_string(node + 1); }
  Child& node(std::size_t i) { return jobs_.node(i); }
  std::vector<ExitStatus> wait() { return jobs_.wait(); }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }

 private:
  std::string control_folder(std::size_t node) const { return file("control" + std::to_string(node)); }

  int nodes_;
  std::vector<std::string> flags_;
  TempDir folder_;
  std::string id_ = std::to_string(std::random_device()() % 1'000'000);
  NodeJob jobs_;
};

}  // namespace ddprun::test
