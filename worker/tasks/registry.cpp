#include "worker/tasks/registry.h"

#include <array>
#include <string_view>

#include "common/errors.h"

namespace ddprun::tasks {
namespace {

struct Entry {
  std::string_view name;
  train::Task (*make)(const Config&);
};

constexpr std::array kTasks = {Entry{"mnist", make_mnist}};

}  // namespace

train::Task make_task(const Config& config) {
  for (const auto& entry : kTasks)
    if (entry.name == config.task) return entry.make(config);
  throw UsageError("unknown task '" + config.task + "'");
}

}  // namespace ddprun::tasks
