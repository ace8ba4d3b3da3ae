#include "launcher/output/output_plan.h"

#include <algorithm>
#include <cctype>

#include "launcher/output/line_format.h"

namespace ddprun::launcher {
namespace {

struct StreamFacts {
  std::string name;  // "stdout"
  bool redirected, teed, is_terminal;
  const std::vector<std::string>& filters;
};

StreamPlan plan_stream(const OutputOptions& options, const OutputPlace& place, const StreamFacts& stream,
                       const LineSource& source, int workers) {
  const bool has_folder = !options.log_dir.empty();
  const bool shown = !options.shown || options.shown->count(source.local_rank) > 0;
  const std::string prefix = line_prefix(place.prefix_template, source);
  StreamPlan plan;
  plan.timestamps = options.timestamps;
  plan.max_file_size = options.log_max_size;
  plan.need_activity = place.need_activity;
  plan.console = shown && (!stream.redirected || stream.teed);
  if (options.prefix.value_or(stream.teed || (stream.is_terminal && workers > 1))) plan.prefix = prefix;
  if (has_folder && (stream.redirected || stream.teed))
    plan.file = place.attempt_folder / std::to_string(source.local_rank) / (stream.name + ".log");
  if (has_folder && !stream.filters.empty()) {
    plan.filtered_file = place.attempt_folder / ("filtered_" + stream.name + ".log");
    plan.filtered_prefix = prefix;
    plan.filters = stream.filters;
  }
  const bool untouched = plan.console && plan.prefix.empty() && plan.file.empty() &&
                         plan.filtered_file.empty() && !options.timestamps && !place.need_activity;
  plan.inherit = workers == 1 && untouched;
  return plan;
}

}  // namespace

std::vector<WorkerOutputPlan> plan_outputs(const OutputOptions& options, const OutputPlace& place,
                                           int first_rank, int workers) {
  std::vector<WorkerOutputPlan> plans;
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const LineSource source{place.role, local_rank, first_rank + local_rank};
    const Streams redirected = options.redirects.of(local_rank), teed = options.tee.of(local_rank);
    plans.push_back(
        {plan_stream(options, place,
                     {"stdout", redirected.out, teed.out, place.out_is_terminal, options.stdout_filters},
                     source, workers),
         plan_stream(options, place,
                     {"stderr", redirected.err, teed.err, place.err_is_terminal, options.stderr_filters},
                     source, workers)});
  }
  return plans;
}

std::string folder_name(const std::string& run_id) {
  constexpr std::size_t kMaxLength = 64;
  std::string name = run_id.substr(0, kMaxLength);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  if (name.find_first_not_of('.') == std::string::npos) name += "_";
  return name;
}

}  // namespace ddprun::launcher
