#include <ddprun/group/process_group.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/backends.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/store_barrier.h>

namespace ddprun::ddp {
namespace {

std::string waiting_line(const WorkerEnv& env, const ProcessGroup::Options& options) {
  return "rank " + std::to_string(env.rank) + " waits at " +
         describe_meeting_place(env, options.init_method) + " for all " + std::to_string(env.world_size) +
         " ranks, up to " +
         std::to_string(std::chrono::ceil<std::chrono::seconds>(options.connect_timeout).count()) + " s";
}

/// Logs the line if it lives longer than expected.
class SlowWaitWarning {
 public:
  SlowWaitWarning(std::chrono::milliseconds expected, std::string line)
      : thread_([expected, line = std::move(line)](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any().wait_for(lock, stop, expected, [] { return false; });
          if (!stop.stop_requested()) log_info(line);
        }) {}

 private:
  std::jthread thread_;
};

bool shared_memory_allowed() {
  const auto value = process_env("DDPRUN_SHARED_MEMORY").value_or("1");
  if (value != "0" && value != "1")
    throw UsageError("DDPRUN_SHARED_MEMORY: expected 0 or 1, got '" + value + "'");
  return value == "1";
}

/// Every rank's text, by rank.
std::vector<std::string> exchange(const StorePtr& store, int rank, int size, const std::string& mine) {
  const auto key = [](int of) { return "device/" + std::to_string(of); };
  store->set(key(rank), mine);
  std::vector<std::string> all;
  for (int of = 0; of < size; ++of) all.push_back(store->get_to_str(key(of)));
  return all;
}

std::string spell(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

/// throws std::invalid_argument unless they are different ranks of the parent, and the same on every rank
void check_new_group(const ProcessGroup& parent, const std::vector<int>& ranks) {
  const auto said = all_gather(parent, spell(ranks));
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank] != said[0])
      throw std::invalid_argument("new_group: expected the same ranks from every rank, got " + said[0] +
                                  " on rank 0 and " + said[rank] + " on rank " + std::to_string(rank));
  if (ranks.empty()) throw std::invalid_argument("new_group: expected at least one rank, got none");
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end() || ranks.front() < 0 ||
      ranks.back() >= parent.size())
    throw std::invalid_argument("new_group: expected different ranks from 0 to " +
                                std::to_string(parent.size() - 1) + ", got " + spell(ranks));
}

}  // namespace

struct ProcessGroup::State {
  GroupParts parts;  // a group of one gets its store and device in make()
  WorkerEnv env;
  std::string interface;
  std::vector<int> world_ranks;
  std::optional<StoreBarrier> barrier;
  int subgroups = 0;
  bool closed = false;
  std::once_flag made;
  c10::intrusive_ptr<c10d::ProcessGroup> group;

  void make() {
    std::call_once(made, [&] {
      if (!parts.store) parts.store = make_own_store();
      if (!parts.gloo_device) parts.gloo_device = make_gloo_device(env, interface);
      group = make_c10d_group(parts);
    });
  }
};

ProcessGroup ProcessGroup::connect(const WorkerEnv& env, const Options& options) {
  auto state = std::make_shared<State>();
  GroupParts& parts = state->parts;
  parts.rank = env.rank;
  parts.size = env.world_size;
  parts.name = "0";  // as PyTorch calls the group of all ranks
  parts.timeout = options.timeout;
  state->env = env;
  state->interface = checked_interface(options.interface);
  state->world_ranks.resize(static_cast<std::size_t>(env.world_size));
  std::iota(state->world_ranks.begin(), state->world_ranks.end(), 0);
  check_store(env, options.init_method);
  parts.shares_memory = options.shared_memory && shared_memory_allowed();

  const RankDevice device = choose_device(options.device, env.local_rank);
  parts.device = device.device;
  std::vector<std::string> devices = {device.id};
  if (env.world_size > 1) {
    const SlowWaitWarning warning(options.notice_after, waiting_line(env, options));
    parts.store = make_store(env, options.init_method, options.connect_timeout);
    state->barrier.emplace(parts.store, env.rank, state->world_ranks);
    state->barrier->meet("connecting at " + describe_meeting_place(env, options.init_method),
                         options.connect_timeout);
    devices = options.device == DeviceChoice::kCpu
                  ? std::vector<std::string>(devices.size(), "cpu")
                  : exchange(parts.store, env.rank, env.world_size, device.id);
  }
  parts.nccl = use_nccl(options.backend, devices);
  // Simulated nodes on one host use the network.
  parts.one_host = env.world_size > 1 && env.local_world_size == env.world_size;
  if (env.world_size > 1) state->make();
  return ProcessGroup(std::move(state));
}

int ProcessGroup::rank() const { return state_->parts.rank; }
int ProcessGroup::size() const { return state_->parts.size; }
const std::vector<int>& ProcessGroup::world_ranks() const { return state_->world_ranks; }
at::Device ProcessGroup::device() const { return state_->parts.device; }
std::string ProcessGroup::backend() const { return state_->parts.nccl ? "nccl" : "gloo"; }

std::optional<ProcessGroup> ProcessGroup::new_group(std::vector<int> ranks,
                                                    std::optional<std::chrono::milliseconds> timeout) const {
  ensure(!state_->closed, "the process group is closed");
  std::sort(ranks.begin(), ranks.end());
  check_new_group(*this, ranks);
  const std::string name = state_->parts.name + "." + std::to_string(++state_->subgroups);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) return std::nullopt;

  auto state = std::make_shared<State>();
  state->parts = state_->parts;
  state->parts.rank = static_cast<int>(own - ranks.begin());
  state->parts.size = static_cast<int>(ranks.size());
  state->parts.name = name;
  state->parts.one_host = false;  // memory and a thread for every subgroup would be too much
  state->parts.timeout = timeout.value_or(state_->parts.timeout);
  state->env = state_->env;
  state->interface = state_->interface;
  for (const int of_parent : ranks)
    state->world_ranks.push_back(state_->world_ranks[static_cast<std::size_t>(of_parent)]);
  state->parts.world_ranks = state->world_ranks;
  if (ranks.size() > 1) {
    state->parts.store = c10::make_intrusive<c10d::PrefixStore>("group_" + name, state_->parts.store);
    state->barrier.emplace(state->parts.store, state->parts.rank, state->world_ranks);
    state->make();
  } else {
    state->parts.store.reset();
  }
  return ProcessGroup(std::move(state));
}

void ProcessGroup::barrier(std::optional<std::chrono::milliseconds> timeout) const {
  ensure(!state_->closed, "the process group is closed");
  if (state_->barrier) state_->barrier->meet("barrier", timeout.value_or(state_->parts.timeout));
}

void ProcessGroup::close() {
  if (std::exchange(state_->closed, true)) return;
  if (state_->group) {
    if (state_->parts.nccl) cuda_plugin().synchronize(device());  // the barrier is on the CPU only
    if (size() > 1) state_->group->barrier()->wait();
    state_->group->shutdown();
  }
  state_->group.reset();
  state_->barrier.reset();
  state_->parts.gloo_device.reset();
  state_->parts.store.reset();  // last: it has the group's keys, and rank 0 may host it
}

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::handle() const {
  ensure(!state_->closed, "the process group is closed");
  state_->make();
  return state_->group;
}

}  // namespace ddprun::ddp
