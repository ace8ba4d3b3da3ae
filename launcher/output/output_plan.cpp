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

StreamPlan plan_stream(const OutputWishes& wishes, const OutputPlace& place, const StreamFacts& stream,
                       const LineSource& source, int workers) {
  const bool has_folder = !wishes.log_dir.empty();
  const bool shown = !wishes.shown || wishes.shown->count(source.local_rank) > 0;
  const std::string prefix = line_prefix(place.prefix_template, source);
  StreamPlan plan;
  plan.console = shown && (!stream.redirected || stream.teed);
  if (wishes.prefix.value_or(stream.teed || (stream.is_terminal && workers > 1))) plan.prefix = prefix;
  if (has_folder && (stream.redirected || stream.teed))
    plan.file = place.attempt_folder / std::to_string(source.local_rank) / (stream.name + ".log");
  if (has_folder && !stream.filters.empty()) {
    plan.filtered_file = place.attempt_folder / ("filtered_" + stream.name + ".log");
    plan.filtered_prefix = prefix;
    plan.filters = stream.filters;
  }
  const bool untouched = plan.console && plan.prefix.empty() && plan.file.empty() &&
                         plan.filtered_file.empty() && !wishes.timestamps && !place.need_activity;
  plan.inherit = workers == 1 && untouched;
  return plan;
}

}  // namespace

OutputWishes read_output_wishes(const OutputOptions& options) {
  OutputWishes wishes;
  wishes.redirects = parse_stream_selection("--redirects", options.redirects);
  wishes.tee = parse_stream_selection("--tee", options.tee);
  wishes.shown = parse_local_ranks("--local-ranks-filter", options.local_ranks_filter);
  wishes.stdout_filters = parse_line_filters(options.stdout_filters);
  wishes.stderr_filters = parse_line_filters(options.stderr_filters);
  wishes.prefix = options.prefix;
  wishes.timestamps = options.timestamps;
  const bool needs_files =
      wishes.redirects.any() || !wishes.stdout_filters.empty() || !wishes.stderr_filters.empty();
  if (options.log_dir) {
    // torchrun's way to say that no files are wanted
    if (*options.log_dir != "/dev/null") wishes.log_dir = *options.log_dir;
  } else if (needs_files) {
    wishes.log_dir = kDefaultLogDir;
  }
  return wishes;
}

std::vector<WorkerLogPlan> plan_outputs(const OutputWishes& wishes, const OutputPlace& place, int first_rank,
                                        int workers) {
  std::vector<WorkerLogPlan> plans;
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const LineSource source{place.role, local_rank, first_rank + local_rank};
    const Streams redirected = wishes.redirects.of(local_rank), teed = wishes.tee.of(local_rank);
    plans.push_back(
        {plan_stream(wishes, place,
                     {"stdout", redirected.out, teed.out, place.out_is_terminal, wishes.stdout_filters},
                     source, workers),
         plan_stream(wishes, place,
                     {"stderr", redirected.err, teed.err, place.err_is_terminal, wishes.stderr_filters},
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
