#include <ddprun/train/record/profiler.h>

#include <fcntl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <set>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::train {
namespace {

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
