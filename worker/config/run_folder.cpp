#include "worker/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/launch_command.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/model/cpu_abilities.h>
#include <ddprun/train/state/checkpoint.h>

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;

/// throws IoError if it cannot tell
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw IoError(path, "cannot be looked up", error.value());
  return found;
}

/// A full disk is only a warning.
void write_text(train::RunFolder& folder, const std::string& name, const std::string& text) {
  const auto path = folder.path() / name;
  try {
    folder.claim(path);
    write_file_atomic(path, text);
  } catch (const IoError& error) {
    if (error.error_number != ENOSPC && error.error_number != EDQUOT) throw;
    log_warning(std::string(error.what()) + "; training goes on");
  }
}

/// In hardware, which is what makes bf16-mixed worthwhile: AVX512-BF16, AMX, or Arm's.
bool cpu_has_bf16() {
  return std::ranges::any_of(train::cpu_abilities(), [](const auto& name) { return name.ends_with("bf16"); });
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The words of such a command.
std::vector<std::string> shell_words(const std::string& command) {
  std::vector<std::string> words;
  bool in_quotes = false, is_escaped = false, is_new = true;
  for (const char c : command) {
    if (c == ' ' && !in_quotes) {
      is_new = true;
      continue;
    }
    if (std::exchange(is_new, false)) words.emplace_back();
    words.back() += c;
    if (c == '\'' && !is_escaped) in_quotes = !in_quotes;
    is_escaped = c == '\\' && !in_quotes;
  }
  return words;
}

/// As typed: with ddprun in front, if it has started this process.
std::string whole_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string text = process_env(kCommandVariable).value_or("");
  for (std::string word; std::getline(file, word, '\0');)
    text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

/// Of the working directory; empty if it is not in a git repository, or git is not installed.
std::string git_commit() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> git(::popen("git rev-parse HEAD 2>/dev/null", "r"),
                                                            ::pclose);
  char commit[65] = "";  // SHA-256's size
  if (git && std::fscanf(git.get(), "%64[0-9a-f]", commit) != 1) commit[0] = '\0';
  return commit;
}

/// The command that continues the run, made from what was typed; the rest is in the checkpoint. Where no
/// single command has started all ranks, or ddprun has hidden a secret, only its flags.
train::NextCommand command_to_continue(const Config& config, const ddp::ProcessGroup& group,
                                       const std::string& worker) {
  auto words = shell_words(process_env(kCommandVariable).value_or(""));
  const bool is_whole =
      !words.empty() && from_env().local_world_size == group.size() &&
      std::ranges::none_of(words, [](const auto& word) { return word.find("***") != std::string::npos; });
  train::NextCommand next{"continue", {}, /*resumes=*/true};
  if (group.size() > 1 && !is_whole) {
    next.label += " on all " + std::to_string(group.size()) + " ranks";
  } else {
    if (is_whole) next.words = std::move(words);
    next.words.insert(next.words.end(), {worker, config.task});
  }
  next.words.insert(
      next.words.end(),
      {"--resume", shell_word(config.train.out == "auto" ? "./auto" : config.train.out.string())});
  const auto typed = nlohmann::json::parse(config.train.config_json);
  // What is never taken from the checkpoint.
  for (const char* name : {"device", "backend", "timeout"})
    if (config.stated.contains(name))
      next.words.insert(next.words.end(),
                        {std::string("--") + name, typed[name].is_string() ? typed[name].get<std::string>()
                                                                           : shortest_text(typed[name])});
  const auto& checkpoint = config.train.checkpoint;
  if (config.stated.contains("memory-checkpoint-every"))
    next.words.insert(next.words.end(),
                      {"--memory-checkpoint-every", std::to_string(checkpoint.memory_every_steps)});
  if (checkpoint.replicate_shards) next.words.push_back("--replicate-shards");
  if (config.recover_on_gpu) next.words.push_back("--recover-on-gpu");
  if (config.task == "toy")  // else the epochs between checkpoints are a word without a name
    next.words.insert(next.words.end(), {"--save-every", std::to_string(config.train.checkpoint.save_every)});
  return next;
}

}  // namespace

void keep_named_runs() {
  static std::vector<FolderLock> held;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) {
    std::error_code error;
    auto path = fs::weakly_canonical(word.starts_with("--") ? word.substr(word.find('=') + 1) : word, error);
    for (; path.has_relative_path(); path = path.parent_path()) try {
        if (!path.filename().string().starts_with("replaced-") || !is_there(path / "run.json")) continue;
        if (auto free = lock_folder(path)) {
          held.push_back(std::move(free));
          train::RunFolder(path).keep();
          held.pop_back();
        }
      } catch (const IoError&) {  // another user's, perhaps, or on a full disk: the lock keeps it meanwhile
      }
  }
}

void lock_run_folder(const fs::path& folder) {
  static std::map<fs::path, std::vector<FolderLock>> locks;
  locks[folder] = train::lock_run_folder(folder);
}

fs::path make_new_folder(const fs::path& parent, const std::string& task) {
  const auto base = parent / (task + "-" + utc_text(std::time(nullptr), "%Y%m%dT%H%M%SZ"));
  // Another process may have started in the same second: the folder is ours only if we create it.
  create_folders(parent);
  std::error_code error;
  auto folder = base;
  for (int i = 2; !fs::create_directory(folder, error) && !error; ++i)
    folder = base.string() + "-" + std::to_string(i);
  if (error) throw IoError(folder, "cannot be created", error.value());
  sync_folder(parent);
  return folder;
}

fs::path make_run_folder(const Config& config) {
  if (const fs::path resume = config.train.checkpoint.resume;
      !resume.empty() && resume != "auto" && !is_there(resume))
    throw UsageError("--resume: expected a checkpoint, a run's folder or auto, got '" + resume.string() +
                     "', which does not exist");
  const bool is_new = config.train.out.empty();
  const auto folder = is_new ? make_new_folder("runs", config.task) : config.train.out;
  if (is_new && !config.train.checkpoint.resume.empty())
    log_info("--resume: a new run begins in " + folder.string() +
             "; to go on in the run that wrote the checkpoint, add --out with its folder");
  create_folders(folder);
  create_folders(folder / "checkpoints");
  lock_run_folder(folder);
  for (const auto& path : {folder, folder / "checkpoints"})
    if (::access(path.c_str(), W_OK | X_OK) != 0)
      throw IoError(path, "cannot write to the run folder", errno);
  return folder;
}

fs::path folder_of_this_job(const fs::path& out) {
  const auto job = process_env(kSharedJobIdVariable).value_or("");
  std::vector<fs::path> folders = {out};
  std::error_code error;
  if (out.empty()) folders.assign(fs::directory_iterator("runs", error), {});
  std::ranges::sort(folders, std::greater());  // the newest first
  for (const auto& path : folders) try {
      const train::RunFolder folder(path);
      const auto is_own = [&](const auto& state) { return state.identity == folder.identity(); };
      const auto age = folder.age_of_this_command();
      if (job.empty() || folder.job() != job || (out.empty() && age != 0)) continue;
      if (age != 0 && age != std::string::npos)
        throw UsageError("--out: in " + path.string() +
                         ", another command of this job has overwritten what this one trained there before "
                         "the job was restarted; give each command an --out of its own");
      if (std::ranges::any_of(train::state_files(folder), is_own)) return path;  // without reading tensors
    } catch (const IoError&) {
      if (!out.empty()) throw;
    }
  return {};
}

void remove_unused_run_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path first[] = {"checkpoints", "config.toml", "environment.json", "run.json"};
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (std::ranges::find(first, entry.path().filename()) == std::end(first)) return;
  if (!fs::remove(folder / first[0], error)) return;  // not empty
  for (const auto& path : {folder / first[1], folder / first[2], folder / first[3], folder})
    fs::remove(path, error);
}

std::vector<train::NextCommand> next_commands(const Config& config, const ddp::ProcessGroup& group) {
  const auto& train = config.train;
  const auto run = shell_word(train.out.string());
  const auto worker = shell_word(::program_invocation_name);
  std::vector<train::NextCommand> next = {command_to_continue(config, group, worker)};
  next.push_back({"evaluate", {worker, config.task, "--eval", run}});
  if (config.task == "sam")
    next.push_back({"predict",
                    {worker, "sam", "--predict", "IMAGE", "--point", "X,Y", "--checkpoint", run, "--mask-out",
                     "mask.png"}});
  else if (config.task == "toy")
    next.push_back({"export", {worker, "export", run, "model.safetensors"}});
  else
    next.push_back({"predict",
                    {worker, config.task, "--predict", config.task == "linear" ? "FILE.csv" : "PICTURE",
                     "--checkpoint", run}});
  return next;
}

std::vector<std::string> run_file_names() { return {"config.toml", "environment.json"}; }

void write_run_files(train::RunFolder& folder, const Config& config, const ddp::ProcessGroup& group) {
  const auto& [run, branch] = folder.identity();
  write_text(folder, "config.toml", c10::str("# run ", run, ", branch ", branch, "\n", to_toml(config)));
  const char* omp = std::getenv("OMP_NUM_THREADS");
  nlohmann::ordered_json json = {{"date", utc_text(std::time(nullptr), "%Y-%m-%d %H:%M UTC")},
                                 {"command", whole_command_line()},
                                 {"ddprun", DDPRUN_VERSION},
                                 {"torch", TORCH_VERSION},
                                 {"host", host_name()},
                                 {"world_size", group.size()},
                                 {"local_world_size", from_env().local_world_size},
                                 {"device", group.device().str()},
                                 {"backend", group.size() > 1 ? group.backend() : "none"},
                                 {"cpus", std::thread::hardware_concurrency()},
                                 {"cpu_bf16", cpu_has_bf16()},
                                 {"threads_per_rank", at::get_num_threads()},
                                 {"OMP_NUM_THREADS", omp == nullptr ? "" : omp}};
  if (const auto commit = git_commit(); !commit.empty()) json["commit"] = commit;
  write_text(folder, "environment.json",
             json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace ddprun::worker
