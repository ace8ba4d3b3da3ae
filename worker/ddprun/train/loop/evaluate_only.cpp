#include <ddprun/train/loop/evaluate_only.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/run_log.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {
namespace {

struct Chosen {
  const data::Dataset& set;
  std::string name, prefix;
};

Chosen choose_set(const Task& task) {
  if (task.test_set) return {*task.test_set, "test", "test"};
  if (task.validation_set) return {*task.validation_set, "validation", "val"};
  return {*task.train_set, "training", "train"};
}

constexpr const char* kResult = "evaluation.json";

/// throws  IoError if the folder has one that is somebody else's: before hours of evaluation
void check_place(const std::filesystem::path& folder) {
  if (const auto other = RunFolder(folder).in_the_way({kResult}, /*goes_on=*/true); !other.empty())
    throw IoError(other, "is not listed in run.json, and is not replaced; move it, or use another --out");
}

void write_json(const std::filesystem::path& folder, const std::string& json) {
  create_folders(folder);
  RunFolder(folder).claim(folder / kResult);
  write_file_atomic(folder / kResult, json + "\n");
}

}  // namespace

void evaluate_only(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group,
                   const std::filesystem::path& weights) {
  const auto begin = Clock::now();
  const Run run{task, options, group};
  if (run.on_rank_0() && !options.out.empty()) check_place(options.out);
  ParallelModel model(run);
  const auto [set, name, prefix] = choose_set(task);
  const auto totals = evaluate(model, run, set, [&] { options.heartbeat.beat(); })->totals;
  if (!run.on_rank_0()) return;
  nlohmann::ordered_json json = {{"task", task.name},
                                 {"weights", weights.string()},
                                 {"set", name},
                                 {"data", task.data_source},
                                 {"samples", std::llround(totals.samples())},
                                 {"world_size", group.size()},
                                 {"seconds", seconds_since(begin)}};
  json[prefix + "_loss"] = totals.mean_loss();
  for (const auto& [measure, mean] : totals.measures()) json[prefix + "_" + measure] = mean.value();
  const auto text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  auto title = name + " set";
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  std::cout << result_line(title, totals) << '\n' << text << std::endl;
  if (!options.out.empty()) write_json(options.out, text);
}

}  // namespace ddprun::train
