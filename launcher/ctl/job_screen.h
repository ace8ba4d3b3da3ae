#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// What ranks can be sorted by, with ddpctl top's keys.
enum class SortBy {
  kRank = 'r',
  kStep = 's',
  kOwnTime = 't',
  kData = 'd',
  kCommunication = 'o',
  kCpu = 'c',
  kMemory = 'm'
};

/// What a screen needs in addition to the job's view.
struct ScreenState {
  nlohmann::ordered_json view;
  nlohmann::ordered_json before;    ///< the previous screen's view; null: none
  std::map<int, GpuUse> gpus = {};  ///< by pid; empty: no known GPUs
};

struct ScreenRow {
  int rank = 0;
  std::string text;
  enum class Kind { kNormal, kSlow, kSlowest, kEnded } kind = Kind::kNormal;
};

/// A job as text, at most this many columns wide. Text from a program cannot drive the terminal.
struct JobScreen {
  std::vector<std::string> head;
  std::string columns;
  std::vector<ScreenRow> rows;
};
JobScreen job_screen(const ScreenState& state, SortBy sort_by, std::size_t width);

/// Where the ranks of other ddpruns are, in a line; empty: there are none.
std::string other_nodes(const nlohmann::ordered_json& view);
/// Where to ask for the output and stacks of a rank of another ddprun, in words; empty: it is ours.
std::string elsewhere(const nlohmann::ordered_json& view, int rank);

/// The lines of ddpctl ps.
std::vector<std::string> job_list(const std::vector<nlohmann::ordered_json>& views);

/// "1:02:03", "4:05"
std::string clock_text(double seconds);
/// "34.1 ms", "1.25 s"
std::string step_text(double seconds);
/// "1.2G", "640M"
std::string bytes_text(double bytes);

}  // namespace ddprun::launcher
