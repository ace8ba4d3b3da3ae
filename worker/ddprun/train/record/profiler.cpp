#include <ddprun/train/record/profiler.h>

#include <fcntl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::train {
namespace {

double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string step_lines(const StepTimes& times) {
  if (times.steps <= 0) return "";
  const double steps = static_cast<double>(times.steps);
  const auto line = [&](const char* name, double seconds, double whole, const char* of) {
    return formatted("  %-18s %10.3f ms  %5.1f %% of %s\n", name, 1e3 * seconds / steps,
                     share(seconds, whole), of);
  };
  return formatted("%lld steps, each %.3f ms on average:\n", static_cast<long long>(times.steps),
                   1e3 * times.total / steps) +
         line("waiting for data", times.data_wait, times.total, "the step") +
         line("communication", times.communication, times.total, "the step") +
         line("  beside backward", times.overlap, times.communication, "communication") +
         (times.overlap > 0 ? "  (communication that overlaps with backward does not lengthen a step)\n"
                            : "");
}

std::string table_of(const char* title, const std::vector<OperatorTime>& rows, std::size_t most) {
  if (rows.empty()) return "";
  std::int64_t all = 0;
  for (const auto& row : rows) all += row.self_ns;
  std::string text = formatted("\n%s\n     self ms  self %%    total ms     calls  name\n", title);
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i) {
    const auto& row = rows[i];
    text += formatted("%12.3f  %6.1f%12.3f%10lld  ", static_cast<double>(row.self_ns) / 1e6,
                      share(static_cast<double>(row.self_ns), static_cast<double>(all)),
                      static_cast<double>(row.total_ns) / 1e6, static_cast<long long>(row.calls)) +
            row.name.substr(0, 80) + "\n";
  }
  if (rows.size() > most) text += formatted("  and %zu more\n", rows.size() - most);
  return text;
}

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::vector<OperatorTime> times_on(const kineto::ProfilerResult& result, bool cpu) {
  std::vector<Span> spans;
  for (const auto& event : result.events()) {
    // Asynchronous events overlap with others on their thread, so they have no self time.
    if ((event.deviceType() == c10::DeviceType::CPU) != cpu || event.isAsync() || event.isHiddenEvent())
      continue;
    spans.push_back({event.name(),
                     cpu ? event.startThreadId() : static_cast<std::uint64_t>(event.deviceResourceId()),
                     static_cast<std::int64_t>(event.startNs()), static_cast<std::int64_t>(event.endNs())});
  }
  return operator_times(std::move(spans));
}

/// Without a GPU, Kineto logs an error for each trace.
void quieten_kineto() { ::setenv("KINETO_LOG_LEVEL", "99", 0); }

/// Kineto only logs when it cannot write a file.
void create(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) throw IoError(path, "cannot create", errno);
}

/// It does not report a disk that fills up on the way, either.
void check_whole(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  std::ifstream file(temporary, std::ios::binary);
  file.seekg(-2, std::ios::end);
  std::string end(2, '\0');
  file.read(end.data(), 2);
  if (!file || end.find('}') == std::string::npos) throw IoError(path, "was not written completely");
}

}  // namespace

std::vector<OperatorTime> operator_times(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tuple(a.thread, a.start_ns, -a.end_ns) < std::tuple(b.thread, b.start_ns, -b.end_ns);
  });
  std::map<std::string, OperatorTime> by_name;
  struct Open {
    const Span* span;
    OperatorTime* time;
  };
  std::vector<Open> open;  // each inside the previous one
  for (const auto& span : spans) {
    while (!open.empty() &&
           (open.back().span->thread != span.thread || open.back().span->end_ns <= span.start_ns))
      open.pop_back();
    const auto duration = span.end_ns - span.start_ns;
    if (!open.empty())
      open.back().time->self_ns -= std::min(duration, open.back().span->end_ns - span.start_ns);
    auto& time = by_name[span.name];
    time.name = span.name;
    time.self_ns += duration;
    time.total_ns += duration;
    ++time.calls;
    open.push_back({&span, &time});
  }
  std::vector<OperatorTime> times;
  for (auto& [name, time] : by_name) times.push_back(std::move(time));
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& a, const auto& b) { return a.self_ns > b.self_ns; });
  return times;
}

std::string profile_table(const StepTimes& times, const std::vector<OperatorTime>& operators,
                          const std::vector<OperatorTime>& kernels, std::size_t most) {
  return step_lines(times) + table_of("slowest operators on the CPU", operators, most) +
         table_of("slowest kernels on the GPU", kernels, most);
}

Profiler::~Profiler() {
  if (!recording_) return;
  try {
    kineto::disableProfiler();
  } catch (...) {  // a destructor cannot report it
  }
}

void Profiler::start() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (cuda_) {
    activities.insert(ActivityType::CUDA);
  } else {
    quieten_kineto();
  }
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
  recording_ = true;
}

std::string Profiler::stop(const std::filesystem::path& trace, const StepTimes& times) {
  ensure(recording_, "stop() of a profiler that is not recording");
  recording_ = false;
  const auto result = kineto::disableProfiler();
  replace_file_atomic(trace, [&](const std::filesystem::path& temporary) {
    create(temporary, trace);
    result->save(temporary);
    check_whole(temporary, trace);
  });
  return profile_table(times, times_on(*result, true), times_on(*result, false));
}

}  // namespace ddprun::train
