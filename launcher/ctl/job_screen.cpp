#include "launcher/ctl/job_screen.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include <ddprun/common/text.h>
#include "launcher/cli/node_options.h"

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;
constexpr std::size_t kMostJobName = 16;
constexpr const char* kPercent = "%.0f %%";

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// null means a NaN loss.
std::optional<double> number(const json& object, const char* path) {
  const json::json_pointer pointer(path);
  if (!object.contains(pointer)) return std::nullopt;
  if (object[pointer].is_null()) return NAN;
  return object[pointer].is_number() ? std::optional(object[pointer].get<double>()) : std::nullopt;
}

std::string words(const json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? printable(object[name].get<std::string>()) : "";
}

std::string program_of(const json& view) {
  return printable(joined(view["program"].get<std::vector<std::string>>(), " "));
}

/// One line of a table.
struct RankLine {
  int rank = 0, pid = 0;
  std::string node, state, note;
  std::optional<double> step, step_seconds, own, data, communication, cpu, memory, samples, loss, gpu,
      gpu_memory;
  ScreenRow::Kind kind = ScreenRow::Kind::kNormal;
};

/// The end of a node's name if it is too long, since nodes often differ there.
std::string node_text(const std::string& name) {
  constexpr std::size_t kMost = 10;
  return name.size() <= kMost ? name : ".." + printable(name.substr(name.size() - kMost + 2));
}

std::optional<double> share(const json& rank, const char* path) {
  const auto part = number(rank, path), whole = number(rank, "/pace/step_seconds");
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return 100 * *part / *whole;
}

/// CPU time as a percentage of the time since the previous view, or else since the worker started.
std::optional<double> cpu_percent(const json& rank, const json& before, double seconds_apart) {
  const auto used = number(rank, "/cpu_seconds"), lived = number(rank, "/seconds");
  if (!used || !lived || *lived <= 0) return std::nullopt;
  if (before.is_object() && seconds_apart > 0)
    for (const json& old : before["ranks"])
      if (old["pid"] == rank["pid"] && old.contains("cpu_seconds"))
        return 100 * (*used - old["cpu_seconds"].get<double>()) / seconds_apart;
  return 100 * *used / *lived;
}

std::string state_text(const json& rank) {
  const std::string state = words(rank, "state"),
                    phase = rank["status"].contains("phase") ? words(rank["status"], "phase") : "";
  if (state == "exited") return format("exit %.0f", number(rank, "/exit_code").value_or(0));
  if (state == "killed") return words(rank, "signal_name");
  return phase.empty() || state == "stopped" ? state : phase;
}

/// "silent 0:42" for a rank that has reported nothing for some steps.
std::string silence_of(const json& rank) {
  constexpr double kLeast = 10, kSteps = 3;
  const double silent = number(rank, "/said_seconds_ago").value_or(0);
  const bool ended = rank.contains("exit_code") || rank.contains("signal_name");
  if (ended || silent < std::max(kLeast, kSteps * number(rank, "/pace/step_seconds").value_or(0))) return "";
  return "silent " + clock_text(silent);
}

RankLine line_of(const json& rank, const ScreenState& state, double seconds_apart) {
  RankLine line;
  const bool is_here = !rank.contains("node");
  line.node = node_text(words(is_here ? state.view : rank, is_here ? "node_name" : "node"));
  line.rank = rank.value("rank", 0);
  line.pid = rank.value("pid", 0);
  line.state = state_text(rank);
  line.note = silence_of(rank);
  if (rank["state"] != "running") line.kind = ScreenRow::Kind::kEnded;
  line.step = number(rank, "/status/step");
  line.step_seconds = number(rank, "/pace/step_seconds");
  if (const auto compute = number(rank, "/pace/compute_seconds"))
    line.own = *compute + number(rank, "/pace/data_seconds").value_or(0);
  line.data = share(rank, "/pace/data_seconds");
  line.communication = share(rank, "/pace/communication_seconds");
  line.cpu = is_here ? cpu_percent(rank, state.before, seconds_apart) : number(rank, "/cpu_percent");
  line.memory = number(rank, "/resident_bytes");
  line.samples = number(rank, "/pace/samples_per_second");
  line.loss = number(rank, "/status/loss");
  if (const auto device = number(rank, "/status/memory/device"); device && *device > 0)
    line.gpu_memory = device;
  if (const auto percent = number(rank, "/gpu/percent"); percent && *percent >= 0) line.gpu = percent;
  if (const auto bytes = number(rank, "/gpu/bytes")) line.gpu_memory = bytes;
  if (const auto gpu = state.gpus.find(line.pid); is_here && gpu != state.gpus.end()) {
    if (gpu->second.percent >= 0) line.gpu = gpu->second.percent;
    line.gpu_memory = gpu->second.bytes;
  }
  return line;
}

void mark_slow(const json& view, std::vector<RankLine>& lines) {
  const auto slowest = std::max_element(lines.begin(), lines.end(), [](const RankLine& a, const RankLine& b) {
    return a.own.value_or(-1) < b.own.value_or(-1);
  });
  const auto fastest = std::min_element(lines.begin(), lines.end(), [](const RankLine& a, const RankLine& b) {
    return a.own.value_or(1e18) < b.own.value_or(1e18);
  });
  constexpr double kMarked = 1.05;  // anything less is chance
  if (lines.size() > 1 && slowest->own && *slowest->own > kMarked * *fastest->own) {
    if (slowest->note.empty()) slowest->note = "slowest";
    slowest->kind = ScreenRow::Kind::kSlowest;
  }
  if (!view.contains("stragglers")) return;
  for (const json& slow : view["stragglers"])
    for (RankLine& line : lines)
      if (slow["rank"] == line.rank) {
        const double factor = slow["factor"].get<double>();
        line.note = format(factor < 9.95 ? "%.1fx " : "%.0fx ", factor) + words(slow, "cause");
        line.kind = ScreenRow::Kind::kSlow;
      }
}

void sort_lines(SortBy sort_by, std::vector<RankLine>& lines) {
  const std::map<SortBy, std::optional<double> RankLine::*> highest_first{
      {SortBy::kOwnTime, &RankLine::own},
      {SortBy::kData, &RankLine::data},
      {SortBy::kCommunication, &RankLine::communication},
      {SortBy::kCpu, &RankLine::cpu},
      {SortBy::kMemory, &RankLine::memory}};
  const auto found = highest_first.find(sort_by);
  const auto key = [&](const RankLine& line) {
    if (sort_by == SortBy::kStep) return -line.step.value_or(1e18);  // furthest behind first
    if (found != highest_first.end()) return (line.*found->second).value_or(-1);
    return -static_cast<double>(line.rank);
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const RankLine& a, const RankLine& b) { return key(a) > key(b); });
}

struct Column {
  std::string title;
  int width;  // negative: left-aligned
  int drop;   // on narrow terminals the highest is dropped first
  std::string (*text)(const RankLine& line);
};

std::string known(const std::optional<double>& value, std::string (*text)(double)) {
  return value ? text(*value) : "-";
}

std::string known(const std::optional<double>& value, const char* pattern) {
  return value ? format(pattern, *value) : "-";
}

/// Drops columns until there is room for a note.
void fit(std::vector<Column>& columns, std::size_t width) {
  constexpr int kNote = 13;  // " 1.8x compute"
  std::erase_if(columns, [](const Column& column) { return column.width == 0; });
  int taken = kNote;
  for (const Column& column : columns) taken += std::abs(column.width);
  while (columns.size() > 1 && taken > static_cast<int>(width)) {
    const auto dropped = std::max_element(columns.begin(), columns.end(),
                                          [](const Column& a, const Column& b) { return a.drop < b.drop; });
    taken -= std::abs(dropped->width);
    columns.erase(dropped);
  }
}

std::vector<Column> columns_for(const std::vector<RankLine>& lines, std::size_t width) {
  const auto any = [&](auto has) { return std::any_of(lines.begin(), lines.end(), has); };
  const bool nodes = any([](const RankLine& line) { return !line.node.empty(); });
  const bool gpus = any([](const RankLine& line) { return line.gpu || line.gpu_memory; });
  std::vector<Column> columns{
      {"RANK", 5, 0, [](const RankLine& line) { return std::to_string(line.rank); }},
      {"NODE", nodes ? -12 : 0, 4, [](const RankLine& line) { return line.node; }},
      {"PID", 9, 12, [](const RankLine& line) { return std::to_string(line.pid); }},
      {"STATE", -10, 1, [](const RankLine& line) { return line.state; }},
      {"STEP", 8, 5, [](const RankLine& line) { return known(line.step, "%.0f"); }},
      {"STEP TIME", 10, 2, [](const RankLine& line) { return known(line.step_seconds, step_text); }},
      {"OWN TIME", gpus ? 0 : 9, 3,  // with GPUs: what the shares leave
       [](const RankLine& line) { return known(line.own, step_text); }},
      {"DATA", 6, 8, [](const RankLine& line) { return known(line.data, kPercent); }},
      {"COMM", 6, 9, [](const RankLine& line) { return known(line.communication, kPercent); }},
      {"CPU", 7, 10, [](const RankLine& line) { return known(line.cpu, kPercent); }},
      {"MEM", 6, 11, [](const RankLine& line) { return known(line.memory, bytes_text); }},
      {"GPU", gpus ? 6 : 0, 6, [](const RankLine& line) { return known(line.gpu, kPercent); }},
      {"GPU MEM", gpus ? 8 : 0, 7, [](const RankLine& line) { return known(line.gpu_memory, bytes_text); }},
      {"SAMPLES/S", 11, 13, [](const RankLine& line) { return known(line.samples, "%.1f"); }},
      {"LOSS", 10, 14, [](const RankLine& line) { return known(line.loss, "%.4g"); }},
  };
  fit(columns, width);
  return columns;
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
}

std::string in_column(std::string text, int width) {
  const std::size_t size = static_cast<std::size_t>(std::abs(width));
  if (width < 0) text = "  " + text;
  text = shortened(text, size);
  const std::string rest(size - characters(text), ' ');
  return width < 0 ? text + rest : rest + text;
}

std::string progress_bar(double fraction, std::size_t width) {
  const auto done = static_cast<std::size_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(width));
  return "[" + std::string(done, '#') + std::string(width - done, '.') + "]";
}

std::string progress_line(const json& view, const std::vector<RankLine>& lines, std::size_t width) {
  const auto step = number(view, "/step"), steps = number(view, "/steps");
  if (lines.empty()) return "no worker is running";
  if (!step) return "the program has not reported its progress (docs/status.md)";
  const auto done = number(view, "/epoch"), epochs = number(view, "/epochs");
  const auto of = [](const std::optional<double>& all) {
    return all ? format("/%.0f", *all) : std::string();
  };
  std::string begin, text;
  if (done)
    begin = format("epoch %.0f", epochs ? std::min(*done + 1, *epochs) : *done + 1) + of(epochs) + "  ";
  begin += format("step %.0f", *step) + of(steps);
  if (steps && *steps > 0) text = format(" %.0f %%", 100 * *step / *steps);
  if (const auto left = number(view, "/remaining_seconds")) text += "  ETA " + clock_text(*left);
  if (const auto loss = number(view, "/loss")) text += format("  loss %.4g", *loss);
  double samples = 0;
  for (const RankLine& line : lines) samples += line.samples.value_or(0);
  if (samples > 0) text += format("  %.0f samples/s", samples);
  constexpr std::size_t kLeastBar = 5, kMostBar = 50;
  const std::size_t taken = begin.size() + text.size() + 3;
  if (steps && *steps > 0 && taken + kLeastBar <= width)
    begin += " " + progress_bar(*step / *steps, std::min(width - taken, kMostBar));
  return begin + text;
}

std::vector<std::string> head_of(const json& view, const std::vector<RankLine>& lines, std::size_t width) {
  std::string first = "job " + words(view, "job");
  std::string name = words(view, "run_id");
  if (name == kDefaultRunId) {  // which nobody chose
    const std::string program = printable(view["program"][0].get<std::string>());
    name = program.substr(program.rfind('/') + 1);
  }
  if (!name.starts_with(words(view, "job"))) first += " (" + name + ")";
  const std::string state = words(view, "state"), age = clock_text(view.value("seconds", 0.0));
  first += "  " + words(view, "host") + "  " + state +
           (state == "running" ? " for " + age : ", started " + age + " ago");
  first += format("  restarts %d", view.value("restarts", 0));
  if (const int most = view.value("max_restarts", 0); most > 0) first += format(" of %d", most);
  std::vector<std::string> head{first, program_of(view), progress_line(view, lines, width)};
  for (const json& drained : view.value("drained", json::array()))
    head.push_back("drained: " + words(drained, "text"));
  if (view.contains("coordinator") && !view.contains("other_ranks"))
    head.push_back("node " + words(view, "node_name") + ": only its ranks are shown; ddpctl on " +
                   words(view, "coordinator") + ", which has the coordinator, shows all");
  return head;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto all = static_cast<long long>(std::clamp(seconds, 0.0, 1e15));
  if (all < 3600) return format("%lld:%02lld", all / 60, all % 60);
  if (all < 100 * 3600) return format("%lld:%02lld:%02lld", all / 3600, all / 60 % 60, all % 60);
  return format("%lld d %lld h", all / 86400, all / 3600 % 24);
}

std::string step_text(double seconds) {
  if (seconds < 1) return format(seconds < 0.1 ? "%.2f ms" : "%.1f ms", 1000 * seconds);
  return format(seconds < 100 ? "%.2f s" : "%.0f s", seconds);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits = "BKMGTP";
  int unit = 0;
  for (; bytes >= 999.5 && unit < 5; ++unit) bytes /= 1024;
  return format(unit > 0 && bytes < 9.95 ? "%.1f%c" : "%.0f%c", bytes, kUnits[unit]);
}

JobScreen job_screen(const ScreenState& state, SortBy sort_by, std::size_t width) {
  std::vector<RankLine> lines;
  const double apart =
      state.before.is_object() ? state.view.value("seconds", 0.0) - state.before.value("seconds", 0.0) : 0;
  for (const char* ranks : {"ranks", "other_ranks"})
    for (const json& rank : state.view.value(ranks, json::array()))
      lines.push_back(line_of(rank, state, apart));
  JobScreen screen;
  for (const std::string& line : head_of(state.view, lines, width))
    screen.head.push_back(shortened(line, width));
  mark_slow(state.view, lines);
  sort_lines(sort_by, lines);
  const auto columns = columns_for(lines, width);
  for (const Column& column : columns) screen.columns += in_column(column.title, column.width);
  screen.columns.resize(std::min(screen.columns.size(), width));
  for (const RankLine& line : lines) {
    std::string text;
    for (const Column& column : columns) text += in_column(column.text(line), column.width);
    if (!line.note.empty()) text += " " + line.note;
    while (characters(text) > width) text.pop_back();
    screen.rows.push_back({line.rank, text, line.kind});
  }
  return screen;
}

std::string elsewhere(const json& view, int rank) {
  const std::string name = "rank " + std::to_string(rank);
  for (const json& each : view["ranks"])
    if (each["rank"] == rank) return "";
  for (const json& each : view.value("other_ranks", json::array()))
    if (each["rank"] == rank) return name + " runs on node " + words(each, "node") + ": run ddpctl there";
  if (view.contains("other_ranks") || !view.contains("coordinator"))
    return name + " does not run on this machine";
  return name + " does not run on this machine; to find its node, run ddpctl top on " +
         words(view, "coordinator") + ", which has the coordinator";
}

std::string other_nodes(const json& view) {
  if (view.value("nodes", 1) < 2) return "";
  std::vector<std::string> names;
  for (const json& each : view.value("other_ranks", json::array()))
    if (std::ranges::find(names, words(each, "node")) == names.end()) names.push_back(words(each, "node"));
  constexpr std::size_t kMost = 4;
  if (names.size() > kMost) names.resize(kMost), names.push_back("...");
  if (names.empty()) return "other ranks run on other nodes: run ddpctl there";
  return "the other ranks run on node " + joined(names, ", ") + ": run ddpctl there";
}

std::vector<std::string> job_list(const std::vector<json>& views) {
  std::size_t widest = 0;  // width of the longest node name
  for (const json& view : views) widest = std::max(widest, words(view, "node_name").size());
  const int width = widest == 0 ? 0 : static_cast<int>(std::max<std::size_t>(widest, 4)) + 1;
  std::vector<std::string> lines{format("JOB       %-*s", width, widest == 0 ? "" : "NODE") +
                                 "STATE    PID      WORKERS  NODES  TIME       PROGRESS         PROGRAM"};
  for (const json& view : views) {
    const auto step = number(view, "/step"), steps = number(view, "/steps");
    const auto workers =
        view.value("workers", 0) + static_cast<int>(view.value("other_ranks", json::array()).size());
    std::string progress = step ? format("%.0f", *step) : "-";
    if (step && steps) progress += format(" of %.0f", *steps);
    const std::string run = words(view, "run_id");
    const bool is_named = run != kDefaultRunId && !run.starts_with(words(view, "job"));
    lines.push_back(format("%-9s %-*s%-8s %-8d %-8d %-6d %-10s %-16s ",
                           shortened(words(view, "job"), kMostJobName).c_str(), width,
                           words(view, "node_name").c_str(), words(view, "state").c_str(),
                           view.value("pid", 0), workers, view.value("nodes", 1),
                           clock_text(view.value("seconds", 0.0)).c_str(), progress.c_str()) +
                    program_of(view) + (is_named ? "  (run id " + run + ")" : ""));
  }
  return lines;
}

}  // namespace ddprun::launcher
