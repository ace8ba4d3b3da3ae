// What checkpoint.h says of a folder of checkpoints.
#include <ATen/core/Dict.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <tuple>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/checkpoint.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> checkpoint_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto extension = entry->path().extension();
    std::error_code ignored;
    if ((extension == ".pt" || extension == ".ckpt") && !entry->path().filename().string().starts_with('.') &&
        !fs::is_directory(entry->path(), ignored))
      files.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw IoError(folder, "cannot be searched for checkpoints", error.value());
  return files;
}

bool is_state(const c10::IValue& value) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  return dict.contains("format") && dict.contains("step");
}

/// A training state as far as one can tell without reading its tensors.
struct Candidate {
  fs::path path;
  std::int64_t step;
  Position position;
  fs::file_time_type written;

  auto age() const { return std::tie(step, position.epoch, position.samples, written); }
};

std::optional<Candidate> peek(const fs::path& path) {
  const auto value = serialize::peek_pt(path);
  if (!is_state(value)) return std::nullopt;
  const auto state = to_training_state(value, path);
  std::error_code ignored;
  return Candidate{path, state.step, state.position, fs::last_write_time(path, ignored)};
}

}  // namespace

std::vector<fs::path> training_state_files(const fs::path& run_folder) {
  auto files = checkpoint_files(run_folder / "checkpoints");
  std::erase_if(files, [](const fs::path& path) {
    try {
      return !is_state(serialize::peek_pt(path));
    } catch (const IoError&) {
      return true;
    }
  });
  return files;
}

ResumePoint find_resume(const fs::path& run_folder) {
  ResumePoint result;
  std::vector<Candidate> candidates;
  for (const auto& path : checkpoint_files(run_folder / "checkpoints")) try {
      if (auto candidate = peek(path)) candidates.push_back(*std::move(candidate));
    } catch (const IoError& error) {
      result.skipped.emplace_back(error.what());
    }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.age() > b.age(); });
  for (const auto& candidate : candidates) try {
      result.state = read_checkpoint(candidate.path);
      result.path = candidate.path;
      break;
    } catch (const IoError& error) {
      result.skipped.emplace_back(error.what());
    }
  return result;
}

}  // namespace ddprun::train
