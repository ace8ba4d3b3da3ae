// worker TASK --predict: a trained classifier's classes for pictures or rows of numbers.
#include <torch/nn/functional/padding.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/data/dataset_files.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/image/image_files.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/record/run_report.h>
#include <ddprun/train/state/checkpoint.h>
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/config/kept_checkpoints.h"
#include "worker/sam/sam_model.h"
#include "worker/tasks/class_samples.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct PredictFlags {
  std::vector<std::string> files;
  fs::path checkpoint, out;
  std::string data;
  std::int64_t batch_size = 64;
  ddp::DeviceChoice device = ddp::DeviceChoice::kAuto;
  bool overwrite = false;
};

/// nullopt for --help.
std::optional<PredictFlags> parse_predict_flags(const std::string& task, bool pictures,
                                                const std::vector<std::string>& words) {
  PredictFlags flags;
  settings::Command command;
  const std::string what = pictures ? "PICTURE|FOLDER..." : "FILE.csv...";
  command.name = "worker " + task;
  command.task = task;
  command.usage = "worker " + task + " --predict " + what + " --checkpoint FILE [flags]";
  command.description = std::string("with --predict: prints the three likeliest classes of each ") +
                        (pictures ? "picture" : "row") + ", and writes them to a folder.";
  command.positionals = {{"predict", what}};
  command.settings = {
      settings::help_flag(),
      settings::list("predict", flags.files,
                     pictures ? "PNG and JPEG files, and folders of them"
                              : "tables of numbers, with or without the label as the last column")
          .not_a_flag(),
      settings::path("checkpoint", flags.checkpoint,
                     "the model: a checkpoint, or any file that --eval takes"),
      settings::path("out", flags.out,
                     "write predictions.json to this folder" +
                         std::string(pictures ? ", and each picture with its class" : "") +
                         " (default: predictions/" + task + "-<UTC time>)")
          .type("DIR"),
      settings::boolean("overwrite", flags.overwrite, "replace the files of an earlier prediction in --out"),
      settings::text("data", flags.data,
                     "the data set that names the classes (default: the one that the model was trained on)")
          .type("DIR|NAME")
          .only({"mnist"}),
      settings::integer("batch-size", flags.batch_size, 1, settings::kMaxInt, "how many to compute at once"),
      device_setting(flags.device),
  };
  if (!apply_words(words, command, {"checkpoint"})) return std::nullopt;
  return flags;
}

/// The files, with a folder's pictures in its place, by name.
std::vector<fs::path> pictures_in(const std::vector<std::string>& given) {
  std::vector<fs::path> files;
  for (const fs::path path : given) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      const auto kind = lower_case(entry->path().extension().string());
      if (kind == ".png" || kind == ".jpg" || kind == ".jpeg") found.push_back(entry->path());
    }
    if (error) throw IoError(path, "cannot be listed", error.value());
    if (found.empty())
      throw IoError(path, "holds no pictures, expected files that end in .png, .jpg or .jpeg");
    std::ranges::sort(found);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string size_text(std::int64_t width, std::int64_t height) {
  return std::to_string(width) + "x" + std::to_string(height);
}

/// Whether the pixels at the picture's edge are lighter than darker.
bool has_light_ground(const torch::Tensor& grey_HW) {
  const auto edge = torch::cat({grey_HW[0], grey_HW[-1], grey_HW.select(1, 0), grey_HW.select(1, -1)});
  return edge.to(torch::kDouble).mean().item<double>() > 127.5;
}

}  // namespace

AdaptedPicture adapt_picture(const image::Image& picture, const PictureInput& wanted) {
  std::vector<std::string> steps;
  const bool grey = wanted.scale.mean.size() == 1, is_grey = picture.channels == 1;
  const auto rgb = grey && is_grey ? picture : to_rgb(picture);
  auto pixels_CHW =
      torch::tensor(rgb.bytes, torch::kUInt8).view({rgb.height, rgb.width, rgb.channels}).permute({2, 0, 1});
  if (grey && !is_grey) {  // as Pillow's convert("L")
    const auto weights = torch::tensor({19595, 38470, 7471}, torch::kInt32).view({3, 1, 1});
    pixels_CHW =
        (((pixels_CHW.to(torch::kInt32) * weights).sum(0, /*keepdim=*/true) + 0x8000).div(65536, "floor"))
            .to(torch::kUInt8);
    steps.emplace_back("to grey");
  }
  if (!grey && is_grey) steps.emplace_back("to RGB");
  if (picture.channels == 4) steps.emplace_back("on white");
  const std::int64_t side = wanted.side, height = picture.height, width = picture.width;
  const auto fits = height == side && width == side;
  if (wanted.dark_ground && !fits && has_light_ground(pixels_CHW[0])) {
    pixels_CHW = 255 - pixels_CHW;
    steps.emplace_back("inverted, as its edge is light");
  }
  if (height != width) {
    const auto longer = std::max(height, width), shorter = std::min(height, width);
    const auto before = [&](std::int64_t size) { return (longer - size) / 2; };
    if (wanted.dark_ground) {
      pixels_CHW = torch::constant_pad_nd(pixels_CHW, {before(width), longer - width - before(width),
                                                       before(height), longer - height - before(height)});
      steps.push_back("padded to a square");
    } else {
      pixels_CHW =
          pixels_CHW.narrow(1, (height - shorter) / 2, shorter).narrow(2, (width - shorter) / 2, shorter);
      steps.push_back("cropped to its central square");
    }
  }
  if (!fits) {
    pixels_CHW = at::_upsample_bilinear2d_aa(pixels_CHW.contiguous().unsqueeze(0), {side, side},
                                             /*align_corners=*/false)[0];
    steps.insert(steps.begin(), size_text(side, side) + " from " + size_text(width, height));
  }
  const auto per_channel = [](const std::vector<float>& values) {
    return torch::tensor(values).view({-1, 1, 1});
  };
  return {pixels_CHW.to(torch::kFloat)
              .div(255)
              .sub(per_channel(wanted.scale.mean))
              .div(per_channel(wanted.scale.std)),
          joined(steps, ", ")};
}

namespace {

/// What is predicted for one picture or row.
struct Prediction {
  std::string name;  ///< of the file, and the row
  std::string adapted;
  std::vector<std::pair<std::int64_t, double>> classes;  ///< with probabilities, the likeliest first
  std::string problem;                                   ///< why there are none
};

/// throws  UsageError for a checkpoint of another task
Classifier read_classifier(const TaskEntry& task, const PredictFlags& flags) {
  auto data = flags.data;
  const auto file = checkpoint_of(flags.checkpoint, "--checkpoint: ");
  if (!serialize::is_safetensors(file))
    if (const auto state = train::read_if_checkpoint(file); state && !state->config_json.empty()) {
      const auto config = ordered_json::parse(state->config_json, nullptr, /*allow_exceptions=*/false);
      const auto text = [&](const char* name) {
        return config.contains(name) && config[name].is_string() ? config[name].get<std::string>() : "";
      };
      if (const auto trained = text("task"); !trained.empty() && trained != task.name)
        throw UsageError("--checkpoint: expected a model of the task " + task.name + ", got one of " +
                         single_quoted(trained));
      if (data.empty()) data = text("data");
    }
  return task.classifier(train::read_weights(file, train::WeightsOf::kAveragesIfAny), file, data);
}

/// Adds the likeliest classes of a batch to those of the predictions from `first` on that have no problem.
void predict_batch(const Classifier& model, const torch::Tensor& input, at::Device device,
                   std::vector<Prediction>& predictions, std::size_t first) {
  const torch::NoGradGuard no_grad;
  const auto scores_BK = model.log_probabilities(input.to(device)).exp().cpu();
  const auto [best, index] = scores_BK.topk(std::min<std::int64_t>(3, scores_BK.size(1)));
  for (std::int64_t i = 0; i < best.size(0); ++first) {
    auto& [name, adapted, classes, problem] = predictions[first];
    if (!problem.empty()) continue;
    for (std::int64_t k = 0; k < best.size(1); ++k)
      classes.emplace_back(index[i][k].item<std::int64_t>(), best[i][k].item<double>());
    ++i;
  }
}

std::string percent(double probability) { return formatted("%.1f %%", 100 * probability); }

const std::string& best_class(const Classifier& model, const Prediction& prediction) {
  return model.classes.at(static_cast<std::size_t>(prediction.classes.front().first));
}

/// Of the i-th of so many pictures, with its class: "pictures/07_cat.png"
fs::path picture_name(std::size_t i, std::size_t count, const fs::path& file) {
  auto number = std::to_string(i + 1);
  number.insert(0, std::to_string(count).size() - number.size(), '0');
  return fs::path("pictures") / (number + "_" + file.stem().string() + ".png");
}

/// Predicts batch after batch; of a picture, also writes it with its class.
std::vector<Prediction> predict_pictures(const Classifier& model, const PredictFlags& flags,
                                         at::Device device) {
  const auto files = pictures_in(flags.files);
  std::vector<Prediction> all;
  std::size_t unreadable = 0;
  while (all.size() < files.size()) {
    const auto first = all.size();
    const auto count = std::min(files.size() - first, static_cast<std::size_t>(flags.batch_size));
    std::vector<torch::Tensor> inputs;
    std::vector<image::Image> pictures(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto& one = all.emplace_back(Prediction{files[first + i].string(), "", {}, ""});
      try {
        pictures[i] = image::read_image(files[first + i]);
        auto [input, how] = adapt_picture(pictures[i], *model.pictures);
        inputs.push_back(std::move(input));
        one.adapted = std::move(how);
      } catch (const IoError& error) {
        if (++unreadable == files.size()) throw;
        one.problem = error.what();
        log_warning(one.problem);
      }
    }
    if (!inputs.empty()) predict_batch(model, torch::stack(inputs), device, all, first);
    for (std::size_t i = first; i < all.size(); ++i) {
      if (!all[i].problem.empty()) continue;
      const auto label = best_class(model, all[i]) + " " + percent(all[i].classes.front().second);
      image::write_png(flags.out / picture_name(i, files.size(), files[i]),
                       image::with_label(pictures[i - first], label));
    }
  }
  return all;
}

std::vector<Prediction> predict_rows(const Classifier& model, const PredictFlags& flags, at::Device device) {
  std::vector<Prediction> all;
  for (const auto& file : flags.files) {
    const auto table = data::read_table(file);
    const auto whole = torch::cat({table.input(), table.target()}, 1);
    if (whole.size(1) != model.columns && whole.size(1) != model.columns + 1)
      throw IoError(file, c10::str("expected ", model.columns, " columns, as the model was trained on, or ",
                                   model.columns + 1, " with the label, got ", whole.size(1)));
    const auto input = whole.narrow(1, 0, model.columns);
    for (std::int64_t row = 0; row < input.size(0); row += flags.batch_size) {
      const auto first = all.size();
      const auto count = std::min(flags.batch_size, input.size(0) - row);
      for (std::int64_t i = 0; i < count; ++i)
        all.push_back({file + " row " + std::to_string(row + i + 1), "", {}, ""});
      predict_batch(model, input.narrow(0, row, count), device, all, first);
    }
  }
  return all;
}

void print_table(const Classifier& model, const std::vector<Prediction>& predictions) {
  std::vector<std::vector<std::string>> rows = {
      {model.pictures ? "PICTURE" : "ROW", "CLASS", "", "SECOND", ""}};
  if (model.classes.size() > 2) rows[0].insert(rows[0].end(), {"THIRD", ""});
  if (model.pictures) rows[0].emplace_back("ADAPTED");
  for (const auto& prediction : predictions) {
    if (!prediction.problem.empty()) continue;  // has been told of
    auto& row = rows.emplace_back(std::vector{one_line(prediction.name)});
    for (const auto& [index, probability] : prediction.classes)
      row.insert(row.end(), {model.classes.at(static_cast<std::size_t>(index)), percent(probability)});
    if (model.pictures) row.push_back(prediction.adapted.empty() ? "-" : prediction.adapted);
  }
  std::cout << in_columns(rows);
}

std::string to_json(const std::string& task, const PredictFlags& flags, const Classifier& model,
                    const std::vector<Prediction>& predictions) {
  ordered_json json = {
      {"task", task}, {"checkpoint", flags.checkpoint.string()}, {"predictions", ordered_json::array()}};
  for (const auto& prediction : predictions) {
    auto classes = ordered_json::array();
    for (const auto& [index, probability] : prediction.classes)
      classes.push_back({{"class", model.classes.at(static_cast<std::size_t>(index))},
                         {"index", index},
                         {"probability", probability}});
    ordered_json one = {{model.pictures ? "picture" : "row", prediction.name}, {"classes", classes}};
    if (model.pictures) one["adapted"] = prediction.adapted;
    if (!prediction.problem.empty()) one["error"] = prediction.problem;
    json["predictions"].push_back(std::move(one));
  }
  // A path is bytes, JSON is UTF-8.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Removes the files of the prediction in this folder. throws  UsageError if it holds anything else; IoError
void remove_predictions(const fs::path& folder) {
  const auto list = folder / "predictions.json";
  const auto json = ordered_json::parse(train::text_if_any(list), nullptr, /*allow_exceptions=*/false);
  const auto found = json.is_object() ? json.value("predictions", ordered_json()) : ordered_json();
  if (!found.is_array())
    throw UsageError(
        "--overwrite: expected a folder with the predictions.json of an earlier prediction, got " +
        single_quoted(folder.string()));
  std::set<fs::path> own;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i].is_object() && found[i].contains("picture") && found[i]["picture"].is_string())
      own.insert(folder / picture_name(i, found.size(), found[i]["picture"].get<std::string>()));
  std::error_code error;
  for (const auto& in : {folder, folder / "pictures"})
    for (const auto& entry : fs::directory_iterator(in, error))
      if (const auto& file = entry.path(); file != list && file != folder / "pictures" && !own.contains(file))
        throw UsageError("--overwrite: " + file.string() +
                         " was not written by an earlier prediction; move it, or use another --out");
  for (const auto& file : own)
    if (!fs::remove(file, error) && error) throw IoError(file, "cannot be replaced", error.value());
}

/// Called once the model is read. throws  UsageError for a folder that holds something; IoError
void make_predictions_folder(const std::string& task, bool pictures, PredictFlags& flags) {
  std::error_code error;
  if (flags.out.empty()) {
    flags.out = make_new_folder("predictions", task);
  } else if (fs::exists(flags.out, error) && !fs::is_empty(flags.out, error)) {
    if (!flags.overwrite)
      throw UsageError("--out: expected a new or empty folder (or --overwrite as well), got " +
                       single_quoted(flags.out.string()));
    remove_predictions(flags.out);
  }
  fs::create_directories(pictures ? flags.out / "pictures" : flags.out, error);
  if (error) throw IoError(flags.out, "cannot be created", error.value());
}

}  // namespace

bool wants_prediction(int argc, char** argv) {
  const std::string_view task = argc > 0 ? argv[0] : "";
  const auto& tasks = all_tasks();
  const auto entry = std::ranges::find(tasks, task, &TaskEntry::name);
  if (entry == tasks.end() || (task != "sam" && entry->classifier == nullptr)) return false;
  return std::any_of(argv + 1, argv + argc, [](const std::string_view word) {
    return word == "--predict" || word.starts_with("--predict=");
  });
}

int run_predict_command(int argc, char** argv) {
  const std::string task = argv[0];
  const auto rank = process_env("RANK").value_or(""), ranks = process_env("WORLD_SIZE").value_or("");
  const bool asks =
      std::any_of(argv, argv + argc, [](const std::string_view word) { return word == "--help"; });
  if (!asks && !rank.empty() && rank != "0" && !ranks.empty() && ranks != "1") {
    log_info("--predict: rank 0 predicts alone, and this is rank " + rank + " (RANK, WORLD_SIZE)");
    return 0;
  }
  if (task == "sam") return sam::run_predict_command(argc, argv);
  const auto& entry = entry_of(task);
  std::vector<std::string> words;
  for (const auto& word : std::vector<std::string>(argv + 1, argv + argc))
    if (word != "--predict") words.push_back(word.starts_with("--predict=") ? word.substr(10) : word);
  const bool pictures = task != "linear";
  auto flags = parse_predict_flags(task, pictures, words);
  if (!flags) return 0;
  const auto device = ddp::choose_device(flags->device, /*local_rank=*/0).device;
  const auto model = read_classifier(entry, *flags);
  make_predictions_folder(task, pictures, *flags);
  model.module->eval();
  model.module->to(device);
  const auto predictions =
      pictures ? predict_pictures(model, *flags, device) : predict_rows(model, *flags, device);
  print_table(model, predictions);
  write_file_atomic(flags->out / "predictions.json", to_json(task, *flags, model, predictions));
  std::cout << "predictions: " << flags->out.string() << std::endl;
  const auto unreadable =
      std::ranges::count_if(predictions, [](const auto& one) { return !one.problem.empty(); });
  if (unreadable == 0) return 0;
  log_error(formatted("%td of %zu pictures cannot be read", unreadable, predictions.size()));
  return 1;
}

}  // namespace ddprun::worker
