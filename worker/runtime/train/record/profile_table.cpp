#include <ddprun/train/record/profile_table.h>

#include <algorithm>
#include <map>
#include <tuple>

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
         line("  beside backward", times.overlap, times.communication, "communication");
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

}  // namespace ddprun::train
