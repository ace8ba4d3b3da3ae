#include <ddprun/train/state/run_folder.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/launch_command.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "run.json";

bool is_checkpoint(const std::string& name) { return name.starts_with("checkpoints/"); }

/// What a later branch may not replace without a copy.
bool is_result(const fs::path& file) {
  return file.stem() == "metrics" || file.stem() == "summary" || is_checkpoint_name(file);
}

/// Its device and inode; 0 if it is not there.
std::pair<dev_t, ino_t> place_of(const fs::path& folder) {
  struct stat found {};
  return ::stat(folder.c_str(), &found) == 0 ? std::pair(found.st_dev, found.st_ino)
                                             : std::pair<dev_t, ino_t>();
}

/// Whether keep_earlier() has given a checkpoint its second name, before it could not be replaced.
bool is_kept_beside(const fs::path& checkpoint) {
  const std::regex kept(R"(-branch=\d+(-v\d+)?\..*|-earlier(-v\d+)?\..*)");
  return std::ranges::any_of(folder_entries(checkpoint.parent_path()), [&](const auto& path) {
    const auto name = path.filename().string(), stem = checkpoint.stem().string();
    return name.starts_with(stem) && std::regex_match(name.substr(stem.size()), kept) &&
           path.extension() == checkpoint.extension() && !fs::is_symlink(path) &&
           place_of(path) == place_of(checkpoint);
  });
}

/// Not one that leads out of the folder: the list may have been edited.
bool is_inside(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && path.is_relative() && path.lexically_normal() == path && *path.begin() != "..";
}

std::string random_hex() { return formatted("%08x", static_cast<unsigned>(std::random_device()())); }

}  // namespace

RunFolder::RunFolder(fs::path folder)
    : folder_(std::move(folder)), place_(place_of(folder_)), checkpoints_place_(place_of(checkpoints())) {
  const auto list = folder_ / kList;
  if (!is_there(list)) return;
  bool known = true;
  try {
    const auto json = nlohmann::json::parse(read_file(list));
    identity_.run = json.at("run");
    files_ = json.at("files").get<std::map<std::string, std::int64_t>>();
    replaced_ = json.value("replaced", std::vector<std::string>());
    writing_ = json.value("writing", "");
    doomed_ = json.value("doomed", std::vector<std::string>());
    set_aside_ = json.value("set_aside", false);
    job_ = json.value("job", "");
    commands_ = json.value("command", "");
    ended_within_ = json.value("ended_within", "");
    identity_.branch = std::max(json.value("branch", std::int64_t{1}), std::int64_t{1});
    for (const auto& [name, branch] : files_) {
      known = known && is_inside(name);
      identity_.branch = std::max(identity_.branch, branch);
    }
    for (const auto& name : replaced_)
      known = known && name.starts_with("replaced-") && fs::path(name).filename() == name;
  } catch (const nlohmann::json::exception&) {
    known = false;
  }
  if (!known)
    throw IoError(list,
                  "is not the list of a run's files; if you delete it, no file here counts as the run's");
}

RunIdentity RunFolder::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

std::size_t RunFolder::age_of_this_command() const { return commands_.find(hash_of_command()); }

std::string RunFolder::name_of(const fs::path& file) const {
  const auto whole = [](const fs::path& path) { return fs::absolute(path).lexically_normal(); };
  return whole(file).lexically_relative(whole(folder_)).string();
}

std::int64_t RunFolder::branch_of(const fs::path& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name_of(file));
  return found == files_.end() ? 0 : found->second;
}

std::vector<fs::path> RunFolder::files() const {
  const std::lock_guard lock(mutex_);
  std::vector<fs::path> all;
  for (const auto& [name, branch] : files_) all.push_back(folder_ / name);
  return all;
}

bool RunFolder::is_foreign(const fs::path& checkpoint) const {
  const std::lock_guard lock(mutex_);
  const auto name = name_of(checkpoint);
  return foreign_.contains(name) && !files_.contains(name);
}

fs::path RunFolder::in_the_way(const std::vector<std::string>& names, bool goes_on) const {
  std::error_code error;
  for (const auto& name : names)  // an empty one is of a full disk
    if (!files_.contains(name) && is_there(folder_ / name) && !fs::is_empty(folder_ / name, error))
      return folder_ / name;
  if (goes_on) return {};
  for (const char* name : {"metrics.csv", "summary.json"})
    if (is_there(folder_ / name)) return folder_ / name;
  const fs::directory_iterator first(checkpoints(), error);
  if (error && error != std::errc::no_such_file_or_directory)
    throw IoError(checkpoints(), "cannot be listed", error.value());
  return !error && first != fs::directory_iterator() ? first->path() : fs::path();
}

void RunFolder::begin(const std::vector<std::string>& names, bool overwrites) {
  const auto has_result = [&] {
    return std::ranges::any_of(files_, [&](const auto& file) {
      return (is_checkpoint_name(file.first) || file.first == "summary.json") &&
             (is_checkpoint(file.first) || is_there(folder_ / file.first));
    });
  };
  const bool had_result = has_result(), had_list = !identity_.run.empty();
  fs::path aside;
  if (had_list) find_states(/*list_is_lost=*/false);
  const bool is_other = had_list && (had_result || has_result());
  if (!overwrites) remove_replaced(/*keeps=*/true);  // nobody said now that they may go
  if (!had_list || is_other) {
    aside = set_aside(names, overwrites);
    if (had_list) files_.clear();
    identity_ = {random_hex(), 1};
  } else {
    if (job_.empty() || job_ != process_env(kSharedJobIdVariable))
      for (const char* name : {"metrics.csv", "metrics.jsonl"})
        if (files_.contains(name)) keep_earlier(folder_ / name);
    auto foreign = names;
    std::erase_if(foreign, [&](const auto& name) { return files_.contains(name); });
    move_to("earlier", {foreign.begin(), foreign.end()});
  }
  checkpoints_place_ = place_of(checkpoints());
  set_aside_ = false;
  ended_within_.clear();
  take_over(is_other);
  try {
    save(/*required=*/!aside.empty());  // or the earlier run's next reader would move that back
  } catch (const IoError&) {
    if (!aside.empty()) move_back(aside, folder_, kList);
    throw;
  }
  try_remove(folder_ / kMoving);
}

/// A run with its list, or what looks like a run of an older version. returns  where
fs::path RunFolder::set_aside(const std::vector<std::string>& names, bool overwrites) {
  std::set<fs::path> all(names.begin(), names.end());
  if (!identity_.run.empty()) {  // else it lists what --eval wrote
    all.insert(kList);
    for (const auto& [name, branch] : files_) all.insert(name);
  }
  // States without a run could be taken for the new run's beginning; someone's copies need their shards, and
  // what cannot be read may be an unfinished copy.
  for (const auto& state : state_files(*this)) {
    const auto file = name_of(state.path);
    const auto shards = state.shards.empty() ? file : name_of(checkpoints() / state.shards);
    const bool is_ours = state.problem.empty() ? !state.identity.run.empty() : identity_.run.empty();
    if (!is_ours || all.contains(file) || all.contains(shards)) all.insert({file, shards});
  }
  for (const auto& name : all)
    if (const auto link = link_above(folder_, name, name.extension() == kShardsEnd);
        !link.empty() && (overwrites || is_checkpoint(name)) && is_there(folder_ / name))
      throw IoError(link, "is a link, behind which nothing is moved; move it, or use another --out");
  if (identity_.run.empty() || !overwrites) return move_to("earlier", std::move(all));
  set_aside_ = true;
  save(/*required=*/true);  // before anything is moved
  replaced_.push_back(move_to(identity_.run, std::move(all)).filename());
  return replaced();
}

/// All of them or none. returns  the new folder
fs::path RunFolder::move_to(const std::string& run, std::set<fs::path> names) {
  std::erase_if(names, [&](const auto& name) { return !is_there(folder_ / name); });
  if (names.empty()) return {};
  const auto to = free_path(folder_ / ("replaced-" + run), "");
  const auto move = [&](const fs::path& name) { move_file(folder_ / name, to / name); };
  const auto sync = [&] { sync_folder(to), sync_folder(folder_); };
  try {
    // First: without the list, what is left of the run is still read; with it, what is gone is missed.
    if (names.contains(kList) || identity_.run.empty())
      write_file_atomic(folder_ / kMoving, to.filename().string());
    if (names.erase(kList) > 0) move(kList), sync();
    if (std::ranges::any_of(names, is_checkpoint)) {
      move("checkpoints");  // all at once, so that no power failure leaves half a state
      for (const auto& path : folder_entries(to / "checkpoints"))
        if (const auto name = "checkpoints" / path.filename(); !names.contains(name))
          move_file(path, folder_ / name);
      create_folders(checkpoints());
      std::erase_if(names, is_checkpoint);
    }
    for (const auto& name : names) move(name);
    sync();
  } catch (const IoError&) {
    move_back(to, folder_, kList);
    if (is_there(folder_ / kList)) try_remove(folder_ / kMoving);
    if (std::exchange(set_aside_, false) && is_there(folder_ / kList)) save();
    throw;
  }
  log_info((run == "earlier" ? "the earlier files are in " : "the earlier run's files are in ") +
           to.string() +
           (run == "earlier" ? "" : " until this run has its first checkpoint, and are then removed"));
  return to;
}

void RunFolder::resume(const RunIdentity& state, bool is_newest, const std::vector<std::string>& names) {
  for (const auto& name : names)  // before anything is changed
    if (name.starts_with("metrics.") && is_there(folder_ / name)) open_regular_file(folder_ / name);
  const bool list_is_lost = identity_.run.empty(), goes_on = is_newest && state == identity_;
  std::error_code error;
  if (const auto run = fs::canonical(checkpoints(), error).parent_path();
      list_is_lost && fs::is_symlink(checkpoints()) && is_there(run / kList))
    throw IoError(checkpoints(), "leads to the checkpoints of the run in " + run.string() +
                                     ", and this folder has no " + std::string(kList) +
                                     ": continue that run with --resume " + run.string() +
                                     ", or start a new run from it by adding another --out");
  take_over(/*replaces=*/false);
  if (list_is_lost) {
    // Without its list a run is still itself.
    identity_ = state.run.empty() ? RunIdentity{random_hex(), 1} : state;
    if (!is_newest) begin_branch(identity_.branch);
    for (const auto& name : names) {
      if (!is_newest && is_result(name)) keep_earlier(folder_ / name);
      if (is_there(folder_ / name)) files_[name] = identity_.branch;
    }
  } else if (state != identity_ || !is_newest) {
    const bool goes_back = state.run == identity_.run && state.branch != identity_.branch;
    begin_branch(identity_.branch + 1);
    if (goes_back) restore_metrics(state.branch);
  }
  set_aside_ = false;
  ended_within_.clear();
  goes_on ? go_on() : find_states(list_is_lost);
  save();
}

void RunFolder::go_on() {
  find_states(/*list_is_lost=*/false);
  if (!is_of_this_branch(folder_ / writing_)) return;
  std::vector<fs::path> doomed;
  for (const auto& name : doomed_) doomed.push_back(folder_ / name);
  wrote(folder_ / writing_, doomed);
}

/// That one, or one later than all of the run's states: somebody may have put an older list back.
void RunFolder::begin_branch(std::int64_t branch) {
  for (const auto& found : state_files(*this))
    if (found.identity.run == identity_.run) branch = std::max(branch, found.identity.branch + 1);
  identity_.branch = branch;
}

/// Lists the state that a killed run wrote last, and without its list those with names that it gives; others
/// are copies that somebody made. And no longer lists what is not the run's under the name of a state.
void RunFolder::find_states(bool list_is_lost) {
  static const std::regex kOwnName(R"(checkpoints/(last|epoch=\d+-step=\d+(-v\d+)?)\.(pt|ckpt))");
  std::set<std::string> own;  // or it cannot be read
  for (const auto& found : state_files(*this)) {
    const auto name = name_of(found.path);
    if (found.problem.empty() && found.identity.run != identity_.run) {
      if (!found.identity.run.empty()) foreign_.insert(name);
      continue;
    }
    own.insert(name);
    if (found.problem.empty() && (list_is_lost ? std::regex_match(name, kOwnName) : name == writing_))
      files_.try_emplace(name, found.identity.branch);
  }
  std::erase_if(files_, [&](const auto& file) {
    const auto& [name, branch] = file;
    const auto path = folder_ / name;
    if (!is_checkpoint(name) || !is_checkpoint_name(path) || own.contains(name) || !is_there(path))
      return false;
    log_warning(path.string() + ": was not written by this run, and is kept");
    foreign_.insert(name);
    return true;
  });
}

/// Those of this branch, if a later one has begun since.
void RunFolder::restore_metrics(std::int64_t branch) {
  for (const char* end : {".csv", ".jsonl"}) {
    const auto file = folder_ / (std::string("metrics") + end);
    const auto kept = newest_version(folder_ / ("metrics-branch=" + std::to_string(branch) + end));
    if (!files_.contains(name_of(file)) || !files_.contains(name_of(kept)) || !is_there(kept)) continue;
    keep_earlier(file);
    files_[name_of(file)] = identity_.branch;
    save();  // first: as the later branch's it would have the other's rows
    write_file_atomic(file, read_file(kept));
  }
}

/// On a full disk it is written with the next change, unless it is required; the run goes on.
void RunFolder::save(bool required) {
  check_still_here();
  auto json = nlohmann::ordered_json{{"run", identity_.run}, {"branch", identity_.branch}, {"files", files_}};
  if (!replaced_.empty()) json["replaced"] = replaced_;
  if (!writing_.empty()) json["writing"] = writing_;
  if (!doomed_.empty()) json["doomed"] = doomed_;
  if (set_aside_) json["set_aside"] = true;
  if (!job_.empty()) json["job"] = job_;
  if (!commands_.empty()) json["command"] = commands_;
  if (!ended_within_.empty()) json["ended_within"] = ended_within_;
  const auto text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {
    write_file_atomic(folder_ / kList, text);
    unsaved_ = false;
  } catch (const IoError& error) {
    if (required || (error.error_number != ENOSPC && error.error_number != EDQUOT)) throw;
    if (!std::exchange(unsaved_, true)) log_warning(std::string(error.what()) + "; the training continues");
  }
}

/// By this job and command, after which the list has those of this job's runs that this one replaces.
void RunFolder::take_over(bool replaces) {
  const auto job = process_env(kSharedJobIdVariable).value_or(""), command = hash_of_command();
  if (job_ != job || job.empty()) commands_.clear();
  if (!commands_.starts_with(command))
    commands_ = command + (replaces ? " " + commands_ : commands_.erase(0, command.size()));
  job_ = job;
}

void RunFolder::end_within(const std::string& limits) {
  const std::lock_guard lock(mutex_);
  ended_within_ = limits;
  save();
}

void RunFolder::claim(const fs::path& file) {
  const std::lock_guard lock(mutex_);
  check_still_here();
  if (!files_.contains(name_of(file)) && is_there(file)) throw IoError(file, kNotOurs);
  if (is_of_this_branch(file)) return;
  if (is_result(file)) keep_earlier(file);
  files_[name_of(file)] = identity_.branch;
  save();
}

std::vector<fs::path> RunFolder::begin_shards(const fs::path& checkpoint, std::int64_t step) {
  check_checkpoints_are_ours(checkpoint);
  const std::lock_guard lock(mutex_);
  const auto in = checkpoint.parent_path();
  std::vector<fs::path> paths = {in / (checkpoint.stem().string() + "-step=" + std::to_string(step) + "-" +
                                       identity_.run + "-" + random_hex().substr(4) + kShardsEnd)};
  const auto before = files_;
  for (const auto& gone : gone_shards_)
    if (files_.erase(name_of(gone)) > 0 && !is_there(gone)) paths.push_back(in / gone.filename());
  files_[name_of(paths.front())] = identity_.branch;
  try {
    save(/*required=*/true);
  } catch (const IoError&) {
    files_ = before;
    throw;
  }
  gone_shards_.clear();
  return paths;
}

void RunFolder::remove_unused_shards() try {
  auto unused = files();
  std::erase_if(unused, [](const auto& path) { return path.extension() != kShardsEnd; });
  if (unused.empty()) return;
  for (const auto& state : state_files(*this)) {
    if (!state.problem.empty()) throw std::runtime_error(state.problem);  // a copy of one, perhaps
    std::erase(unused, checkpoints() / state.shards);
  }
  for (const auto& shards : unused) remove_shards(shards);
  if (!unused.empty()) sync_folder(checkpoints());  // before they are no longer listed
  const std::lock_guard lock(mutex_);
  gone_shards_.insert(unused.begin(), unused.end());
} catch (const std::exception& error) {
  if (!std::exchange(warned_, true))
    log_warning(std::string(error.what()) + "; shards that no checkpoint uses are kept for now");
}

/// The lock went with the folder, if that was moved away, and another run may have made this one.
void RunFolder::check_still_here() const {
  const auto now = place_of(folder_), none = std::pair<dev_t, ino_t>();
  if (place_ != none && now != none && now != place_)
    throw IoError(folder_, "is not this run's folder, which was moved away while the run trained");
}

/// The folder may be another one than before: ours moved to a larger disk, with a link to it, or another
/// run's, which has a state under a name of ours.
///
/// next  the state to be written
void RunFolder::check_checkpoints_are_ours(const fs::path& next) {
  const std::lock_guard lock(mutex_);
  const auto now = place_of(checkpoints());
  if (now == checkpoints_place_) return;
  for (const auto& state : state_files(*this))
    if (state.problem.empty() && state.identity.run != identity().run &&
        (branch_of(state.path) > 0 || name_of(state.path) == name_of(next)))
      throw IoError(checkpoints(),
                    "holds another run's checkpoints, which were put there while this one trained");
  checkpoints_place_ = now;
}

void RunFolder::make_way(const fs::path& checkpoint, const std::vector<fs::path>& doomed) {
  check_still_here();
  check_checkpoints_are_ours(checkpoint);
  const std::lock_guard lock(mutex_);
  if (is_of_this_branch(checkpoint)) return;
  writing_ = name_of(checkpoint);
  doomed_.clear();
  for (const auto& file : doomed) doomed_.push_back(name_of(file));
  if (!is_kept_beside(checkpoint)) keep_earlier(checkpoint);
  files_.erase(writing_);
  save();
}

bool RunFolder::is_of_this_branch(const fs::path& file) const {
  return branch_of(file) == std::max(identity_.branch, std::int64_t{1});
}

void RunFolder::keep_earlier(const fs::path& file) {
  if (!is_there(file)) return;
  const auto found = files_.find(name_of(file));
  const bool is_listed = found != files_.end();
  const auto kept =
      free_path(file, is_listed ? "-branch=" + std::to_string(found->second) : std::string("-earlier"));
  if (is_listed && files_.emplace(name_of(kept), found->second).second) save();
  try {
    if (is_checkpoint_name(file)) {
      fs::create_hard_link(file, kept);  // so that it never is without a name
    } else {
      write_file_atomic(kept, read_file(file));  // the run goes on in the file
    }
  } catch (const std::exception&) {
    if (file.stem() == "metrics") throw;
    move_file(file, kept);
  }
  sync_folder(kept.parent_path());
}

void RunFolder::wrote(const fs::path& checkpoint, const std::vector<fs::path>& doomed) {
  const std::lock_guard lock(mutex_);
  if (name_of(checkpoint) == writing_) writing_.clear(), doomed_.clear();
  auto own = doomed;
  std::erase_if(own, [&](const auto& file) { return !is_of_this_branch(file); });
  remove(own, files_.insert_or_assign(name_of(checkpoint), identity_.branch).second);
}

void RunFolder::remove(std::vector<fs::path> files, bool list_changed) {
  const std::lock_guard lock(mutex_);
  std::erase_if(files, [&](const auto& file) { return files_.erase(name_of(file)) == 0; });
  for (const auto& file : files) {
    std::error_code error;
    if (!fs::remove(file, error) && error)
      throw IoError(file, "cannot delete this replaced checkpoint", error.value());
  }
  if (!files.empty()) sync_folder(checkpoints());  // what is there is listed
  if (list_changed || unsaved_ || !files.empty()) save();
}

void RunFolder::remove_replaced(bool keeps) {
  const std::lock_guard lock(mutex_);
  for (const auto& name : replaced_) try {
      const auto path = folder_ / name;
      if (!is_there(path / kList) || fs::is_symlink(path)) continue;
      const auto free = lock_folder(path);  // null: it is being resumed
      RunFolder replaced(path);
      const auto is_linked = [&](const auto& file) {
        return !link_above(path, file.first, file.first.ends_with(kShardsEnd)).empty();
      };
      if (std::ranges::any_of(replaced.files_, is_linked)) continue;  // its user has put a part elsewhere
      if (!keeps && free != nullptr && replaced.set_aside_)
        replaced.remove_all(), log_info("removed " + path.string() + ", which --overwrite has replaced");
      else if (!keeps)
        log_warning(path.string() + ": this replaced run was resumed, or named by a command, and is kept");
      else if (free != nullptr)
        replaced.keep();
    } catch (const std::exception& error) {
      log_warning(error.what());
    }
  if (!std::exchange(replaced_, {}).empty()) save();
}

/// And the folders that are then empty.
void RunFolder::remove_all() {
  for (const auto& path : files()) try_remove(path);
  remove_unused_shards();
  try_remove(folder_ / kList);
  remove_empty_folders(folder_);
}

/// As replace_file_atomic() names it.
bool RunFolder::owns_temporary(const fs::path& file) const {
  static const std::regex kTemporary(R"(\.(.+)\.tmp\.\d+)");
  const auto name = file.filename().string();
  std::smatch parts;
  if (!std::regex_match(name, parts, kTemporary)) return false;
  const auto of = parts[1].str();
  const auto written = name_of(file.parent_path() / of);
  return of == kList || of == kMoving || written == writing_ || files_.contains(written);
}

}  // namespace ddprun::train
