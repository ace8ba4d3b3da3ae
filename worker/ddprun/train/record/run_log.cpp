#include <ddprun/train/record/run_log.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include <torch/nn/module.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

report::MetricRow all_times(const ddp::DistributedDataParallel::Statistics& statistics) {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  return {{"forward_ms", ms(statistics.forward_ns)},
          {"backward_ms", ms(statistics.backward_ns)},
          {"communication_ms", ms(statistics.communication_ns)},
          {"overlap_ms", ms(statistics.overlap_ns)}};
}

nlohmann::ordered_json to_json(const ddp::DistributedDataParallel::Statistics& statistics) {
  nlohmann::ordered_json json = {{"backend", statistics.backend}, {"bucket_bytes", statistics.bucket_bytes}};
  for (const auto& [name, value] : all_times(statistics)) json[name] = value;
  return json;
}

/// Epoch, step, and the figures of the data sets.
nlohmann::ordered_json figures_json(const report::MetricRow& row) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : row)
    if (name == "epoch" || name == "step")
      json[name] = static_cast<std::int64_t>(value);
    else if (name.starts_with("train_") || name.starts_with("val_") || name.starts_with("test_"))
      json[name == "train_loss_epoch" ? "train_loss" : name] = value;
  return json;
}

nlohmann::ordered_json to_json(const RunSummary& summary, const Task& task, int world_size) {
  nlohmann::ordered_json json = {{"task", task.name},
                                 {"world_size", world_size},
                                 {"epochs", summary.epochs},
                                 {"steps", summary.steps},
                                 {"epochs_count_from", 0},  // "epoch" below, as in the metrics
                                 {"seconds", summary.seconds},
                                 {"samples_per_second", summary.samples_per_second},
                                 {"training_samples", task.train_set->size()}};
  const auto add = [&](const std::optional<Totals>& totals, const std::string& set) {
    if (!totals) return;
    json[set + "_loss"] = totals->mean_loss();
    for (const auto& [name, mean] : totals->measures()) json[set + "_" + name] = mean.value();
  };
  add(summary.train, "train");
  add(summary.validation, "val");
  add(summary.test, "test");
  if (!summary.best.empty())
    json["best"] = figures_json(summary.best), json["last"] = figures_json(summary.last);
  if (!summary.checkpoint.empty()) json["checkpoint"] = summary.checkpoint.string();
  if (!summary.best_checkpoint.empty()) json["best_checkpoint"] = summary.best_checkpoint.string();
  if (!summary.stop_reason.empty()) json["stopped"] = summary.stop_reason;
  if (summary.diverged) json["diverged"] = true;
  if (summary.loss_scale) {
    json["loss_scale"] = *summary.loss_scale;
    json["skipped_steps"] = summary.skipped_steps;
  }
  json["peak_rss_mb"] = summary.memory.rss_mb;
  for (const auto& gpu : summary.memory.gpus)
    json["gpu_memory_mb"].push_back({{"allocated", gpu.allocated},
                                     {"reserved", gpu.reserved},
                                     {"peak_allocated", gpu.peak_allocated},
                                     {"peak_reserved", gpu.peak_reserved}});
  const Ledger& spent = summary.spent;
  const double known =
      spent.start + spent.data + spent.compute + spent.communication + spent.evaluation + spent.checkpoint;
  json["time"] = {{"training_seconds", summary.training_seconds},
                  {"process_seconds", spent.total},
                  {"start_seconds", spent.start},
                  {"data_wait_seconds", spent.data},
                  {"compute_seconds", spent.compute},
                  {"communication_seconds", spent.communication},
                  {"evaluation_seconds", spent.evaluation},
                  {"checkpoint_stall_seconds", spent.checkpoint},
                  {"other_seconds", spent.total - known}};
  json["ddp"] = to_json(summary.ddp);
  return json;
}

constexpr std::chrono::seconds kPageEvery{5};

/// With the run's limits, which hold for one command only; those that the training has reached are raised.
NextCommand with_limits(NextCommand command, const TrainerOptions& options, const RunSummary& reached) {
  const auto add = [&](const std::string& flag, double limit, double done) {
    if (limit <= 0) return;
    while (limit <= done) limit *= 2;
    const bool is_whole = limit == std::floor(limit);
    command.words.insert(command.words.end(),
                         {flag, is_whole ? formatted("%.0f", limit) : shortest_text(limit)});
  };
  const bool time_is_up = reached.stop_reason == kTimeIsUp;
  const auto patience = static_cast<double>(options.checkpoint.patience);
  add("--epochs", static_cast<double>(options.epochs), static_cast<double>(reached.epochs));
  add("--max-steps", static_cast<double>(options.max_steps), static_cast<double>(reached.steps));
  add("--max-time", options.max_seconds, time_is_up ? std::max(options.max_seconds, reached.seconds) : 0);
  if (!reached.stop_reason.empty() && !time_is_up) add("--patience", patience, patience);
  return command;
}

/// "1 rank", "2 ranks"
std::string counted(std::int64_t count, const std::string& what) {
  return c10::str(count, " ", what, count == 1 ? "" : "s");
}

/// "0.001", or of a rate that rises at first "5e-06, up to 5e-04": both in the same notation.
std::string rate_text(double first, double highest) {
  auto low = c10::str(first), high = c10::str(highest);
  if (!(highest > first)) return low;
  const auto scientific = [](double rate) {
    auto text = formatted("%.1e", rate);
    return text[2] == '0' ? text.erase(1, 2) : text;
  };
  if (low.find('e') != std::string::npos || high.find('e') != std::string::npos)
    low = scientific(first), high = scientific(highest);
  return low + ", up to " + high;
}

/// "32-bit, batch size 128 per rank, 256 in total, learning rate 0.001, 1199882 parameters"
///
/// rises  the learning rate is below that of --lr, and will reach it
std::string step_line(const Run& run, double learning_rate, bool rises) {
  constexpr const char* kPrecision[] = {"32-bit", "bf16-mixed", "16-mixed"};
  const auto& options = run.options;
  std::int64_t parameters = 0;
  for (const auto& parameter : run.task.module->parameters()) parameters += parameter.numel();
  const auto& optim = options.optim;
  const double lr = optim.optimizer.lr;
  const double highest = optim.scale_lr ? scaled_lr(lr, run.group.size()) : lr;
  return c10::str(
      kPrecision[static_cast<int>(options.precision.precision)], ", batch size ", options.batch_size,
      " per rank, ", options.batch_size * options.accumulate * run.group.size(), " in total",
      options.accumulate > 1 ? c10::str(" (", options.accumulate, " accumulated)") : "", ", learning rate ",
      rate_text(learning_rate, rises ? highest : 0), ", ", parameters, " parameters");
}

/// A path as seen from the run's folder, if it is in there.
std::string inside(const fs::path& folder, const fs::path& path) {
  const auto relative = path.lexically_relative(folder).string();
  return relative.empty() || relative.starts_with("..") ? path.string() : relative;
}

/// In Markdown.
std::string as_code(const std::string& text) {
  std::string code;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) code.append("    ").append(line).append("\n");
  return code;
}

}  // namespace

std::string result_line(const std::string& set, const Totals& totals) {
  auto line = set + formatted(": Average loss: %.4f", totals.mean_loss());
  for (const auto& [name, mean] : totals.measures())
    line += name == "acc" ? formatted(", Accuracy: %.0f/%.0f (%.2f%%)", mean.sums()[0], mean.count(),
                                      100 * mean.value())
                          : formatted(", %.60s: %.4f", name.c_str(), mean.value());
  return line;
}

report::MetricRow ddp_times(const ddp::DistributedDataParallel::Statistics& statistics) {
  return statistics.forward_ns == 0 ? report::MetricRow() : all_times(statistics);
}

RunLog::RunLog(const Run& run, std::optional<std::int64_t> resumed_at,
               std::optional<std::int64_t> resumed_rows)
    : run_(run), bar_(run.options.progress && run.on_rank_0()) {
  const auto& group = run.group;
  const bool gpu = ddp::any_rank_true(group, group.device().is_cuda());
  if (!run.on_rank_0()) return;
  RunRecord::Options record;
  record.columns = run.metric_columns();
  if (group.size() > 1 && !run_.options.parallel.fsdp)
    for (const auto& [name, value] : all_times({})) record.columns.push_back(name);
  for (auto& name : resource_columns(group.size(), gpu)) record.columns.push_back(std::move(name));
  record.resumed_at = resumed_at;
  record.resumed_rows = resumed_rows;
  record.tensorboard = run_.options.tensorboard;
  record.save_last = run_.options.checkpoint.save_last;
  record_.emplace(*run_.folder, std::move(record));
}

void RunLog::print_own(const std::string& line) {
  bar_.clear();
  std::cout << one_line(line) << std::endl;
}

void RunLog::print(const std::string& line) {
  if (record_) print_own(line);
}

void RunLog::announce(double learning_rate, bool from_start) {
  const auto& task = run_.task;
  auto line = "Training " + task.name + " on " + counted(run_.group.size(), "rank");
  const auto add = [&](const char* between, const auto& set, const char* what) {
    if (set) line += c10::str(between, set->size(), what);
  };
  add(", ", task.train_set, " training");
  add(task.test_set ? ", " : " and ", task.validation_set, " validation");
  add(" and ", task.test_set, " test");
  print(line + " examples from " + task.data_source);
  const std::string device = run_.options.device_name.empty() ? "CPU" : run_.options.device_name;
  print(run_.group.size() == 1 ? "Single process on " + device + ": no process group needed"
                               : "Process group initialized: " + counted(run_.group.size(), "rank") +
                                     " over " + run_.group.backend() + " on " + device);
  const auto& optim = run_.options.optim;
  const bool rises = from_start && (optim.warmup_steps > 0 || optim.schedule == LrScheduleKind::kOneCycle);
  print(step_line(run_, learning_rate, rises));
  if (record_) record_->add_text("config", as_code(text_if_any(run_.options.out / "config.toml")));
}

void RunLog::row(const report::MetricRow& row) {
  if (!record_) return;
  record_->add_metrics(row);
  if (run_.options.report && std::chrono::steady_clock::now() >= next_page_) write_page_so_far();
}

/// For ddprun --metrics-port, or to open from the folder. Takes at most a hundredth of the time.
void RunLog::write_page_so_far() {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_.folder->claim(run_.options.out / "report.html");
    write_run_report(run_.options.out, run_.options.out / "report.html", run_.task.name);
  } catch (const std::exception&) {  // the final page reports why
  }
  const auto end = std::chrono::steady_clock::now();
  next_page_ = std::max(begin + kPageEvery, end + 100 * (end - begin));
}

void RunLog::progress(const TrainState& at, const TrainProgress& progress, bool with_line,
                      double learning_rate, const report::MetricRow& more) {
  if (with_line && run_.task.train_line) print(run_.task.train_line(progress));
  warn_unless_finite("training loss", progress.loss, at.step);
  report::MetricRow figures = {
      {"epoch", at.epoch}, {"step", at.step}, {"lr", learning_rate}, {"train_loss", progress.loss}};
  figures.insert(figures.end(), more.begin(), more.end());
  row(figures);
}

void RunLog::epoch_line(std::int64_t epoch, const report::MetricRow& row) {
  auto line = formatted("Epoch %ld/%ld", epoch + 1, run_.options.epochs);
  const char* between = ": ";
  for (const auto& [name, value] : row) {
    if (!name.starts_with("train_") && !name.starts_with("val_")) continue;
    line += between + (name == "train_loss_epoch" ? "train_loss" : name) + formatted(" %.4f", value);
    between = ", ";
  }
  print(line);
}

void RunLog::result_line(const std::string& set, const Totals& totals) {
  print(train::result_line(set, totals));
}

void RunLog::figure(const std::string& name, const std::string& metric, std::int64_t step,
                    const std::function<Figure()>& draw) {
  if (!record_ || !run_.options.report) return;
  try {
    record_->add_figure(name, report::tensorboard_tag(metric), step, draw());
  } catch (const std::exception& error) {
    log_warning("no figure " + name + ": " + error.what());
  }
}

void RunLog::warn_unless_finite(const std::string& what, double loss, std::int64_t step) {
  if (!record_ || std::isfinite(loss) || warned_) return;
  warned_ = true;
  log_warning("the " + what + " is " + std::to_string(loss) + " at step " + std::to_string(step) +
              ": the training has diverged; a smaller --lr may help");
}

void RunLog::finish(const RunSummary& summary) {
  if (!record_) return;
  print("Training completed: " + counted(summary.epochs, "epoch") + ", " + counted(summary.steps, "step") +
        formatted(" in %.1f s", summary.seconds));
  for (std::size_t rank = 0; rank < summary.memory.gpus.size(); ++rank)
    print(describe(summary.memory.gpus[rank], static_cast<int>(rank)));
  auto why = summary.stop_reason;
  const auto most = run_.options.max_steps;
  if (why.empty() && most > 0 && summary.steps >= most && summary.epochs < run_.options.epochs)
    why = "--max-steps=" + std::to_string(most);
  if (!why.empty()) print("stopped at step " + std::to_string(summary.steps) + ": " + why);
  // A path is bytes, JSON is UTF-8.
  const auto json = to_json(summary, run_.task, run_.group.size())
                        .dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  // First: once there is a summary, the run has ended, and nobody would finish what was killed here.
  const bool has_model = run_.task.write_weights && !summary.checkpoint.empty() && write_best(summary);
  record_->finish(json + "\n", !summary.checkpoint.empty());
  auto card = results(summary);
  card.add("run", (run_.options.out / "").string());
  std::error_code error;
  const bool kept = !summary.checkpoint.empty() && fs::exists(summary.checkpoint, error);
  if (kept) card.add("checkpoint", inside(run_.options.out, summary.checkpoint));
  if (run_.options.report && write_report()) card.add("report", "report.html");
  if (has_model) card.add("model", "best/");
  for (const auto& command : run_.options.next_commands)
    if (kept) card.add(command.resumes ? with_limits(command, run_.options, summary) : command);
  for (const auto& line : card.lines()) print(line);
}

/// Those of held-out sets are of the best checkpoint, if one is kept.
EndCard RunLog::results(const RunSummary& summary) const {
  EndCard card;
  const bool kept = !summary.best.empty();
  report::MetricRow best = summary.best;
  if (!kept) try {
      best = best_row(report::read_metrics_csv(record_->metrics_path()), run_.monitor, run_.mode);
    } catch (const IoError&) {  // on a full disk
    }
  const auto epoch = static_cast<std::int64_t>(find_metric(best, "epoch").value_or(0)) + 1;
  if (const auto value = find_metric(best, run_.monitor))
    card.add("best",
             run_.monitor +
                 formatted(" %.4g in epoch %ld of %ld", *value, epoch, std::max(epoch, summary.epochs)) +
                 (kept ? ": " + inside(run_.options.out, summary.best_checkpoint) : " (no checkpoint)"));
  const auto add = [&](const char* label, const std::optional<Totals>& totals, const std::string& set) {
    report::MetricRow row;
    if (totals) totals->append_to(row, set);
    if (totals)
      card.add(label, figures_text(row, set) + (!kept            ? ""
                                                : set == "train" ? ", of the last epoch"
                                                                 : ", of the best"));
  };
  add("training", summary.train, "train");
  add("validation", summary.validation, "val");
  add("test", summary.test, "test");
  if (std::isfinite(summary.samples_per_second) && summary.samples_per_second > 0)  // not evaluated alone
    card.add("speed", formatted("%.0f samples/s", summary.samples_per_second));
  card.add("memory", formatted("%.0f MiB at its peak", summary.memory.rss_mb) +
                         (run_.group.size() > 1 ? ", on the rank with the most" : ""));
  return card;
}

/// A failure is only a warning: the checkpoint exists.
bool RunLog::write_best(const RunSummary& summary) {
  const auto& from = summary.best_checkpoint.empty() ? summary.checkpoint : summary.best_checkpoint;
  const auto folder = run_.options.out / "best";
  try {
    for (const auto& name : run_.task.best_files) run_.folder->claim(folder / name);
    run_.task.write_weights(folder, weights_to_evaluate(read_weights_of_checkpoint(from)));
    return true;
  } catch (const std::exception& error) {
    log_warning("no model in " + folder.string() + ": " + error.what() + "; worker export creates it from " +
                from.string());
    return false;
  }
}

/// A failure is only a warning.
bool RunLog::write_report() {
  const auto& folder = run_.options.out;
  try {
    auto charts = charts_of(report::read_metrics_csv(record_->metrics_path()));
    std::erase_if(charts, [&](const auto& chart) {
      try {
        run_.folder->claim(folder / "figures" / (chart.name + ".svg"));
        return false;
      } catch (const IoError& error) {  // somebody else's: the others are written
        log_warning(error.what());
        return true;
      }
    });
    write_charts(folder / "figures", charts);
    run_.folder->claim(folder / "report.html");
    write_run_report(folder, folder / "report.html");
    return true;
  } catch (const std::exception& error) {
    log_warning(std::string("no report: ") + error.what());
    return false;
  }
}

void RunLog::terminate() {
  if (!record_) return;
  record_->flush();
  if (!record_->has_checkpoint()) return print("terminated, without a checkpoint to continue from");
  NextCommand again = {"continue", {"--resume", run_.options.out.string()}};
  for (const auto& command : run_.options.next_commands)
    if (command.resumes) again = command;
  std::string line =
      std::string("terminated; ") +
      (record_->lost_the_last() ? "the last checkpoint was not written, but there is an earlier one; " : "") +
      again.label + " with";
  for (const auto& word : with_limits(again, run_.options, {}).words) line += " " + word;
  print(line);
}

}  // namespace ddprun::train
