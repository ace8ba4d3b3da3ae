#include <ddprun/group/process_group.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string_view>
#include <thread>

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/flight/flight_analysis.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/backends.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/rounds.h>
#include <ddprun/group/store.h>

namespace ddprun::ddp {
namespace {

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

/// throws std::invalid_argument unless they are different ranks of the parent, and the same on every rank
void check_new_group(const ProcessGroup& parent, const std::vector<int>& ranks) {
  const auto said = all_gather(parent, c10::Join(", ", ranks));
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank] != said[0])
      throw std::invalid_argument(c10::str("new_group: expected the same ranks from every rank, got ",
                                           said[0], " on rank 0 and ", said[rank], " on rank ", rank));
  if (ranks.empty()) throw std::invalid_argument("new_group: expected at least one rank, got none");
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end() || ranks.front() < 0 ||
      ranks.back() >= parent.size())
    throw std::invalid_argument(c10::str("new_group: expected different ranks from 0 to ", parent.size() - 1,
                                         ", got ", c10::Join(", ", ranks)));
}

constexpr std::chrono::milliseconds kPollAtLeastEvery{10}, kLookInBarrierEvery{250};

/// Calls it until it returns true or the time is up. False if it never did.
/// throws  RoundOver once give_up() returns true
bool wait_unless(const std::function<bool()>& give_up, std::chrono::milliseconds timeout,
                 const std::function<bool()>& is_done) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::chrono::nanoseconds waited{0}; waited < timeout;
       waited = std::chrono::steady_clock::now() - begin) {
    if (give_up()) throw RoundOver();
    if (is_done()) return true;
    std::this_thread::sleep_for(pause_after(waited, kPollAtLeastEvery));
  }
  return false;
}

/// Calls it in a thread, which is left behind if the wait is given up: the store and Gloo cannot give up
/// connecting.
/// throws  RoundOver once give_up() has returned true for a while
template <typename Connect>
auto call_unless(const std::function<bool()>& give_up, Connect connect) {
  if (!give_up) return connect();
  std::packaged_task<decltype(connect())()> task(std::move(connect));
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  for (int over = 0; done.wait_for(std::chrono::milliseconds(3)) != std::future_status::ready;)
    if (give_up() && ++over > 100) throw RoundOver();
  return done.get();
}

/// A barrier through the store: needs no connections between the ranks, and names the missing ranks if it
/// fails. The last rank to arrive, or the first to time out, decides how it ends for all.
class StoreBarrier {
 public:
  /// world_ranks  of the members, in the order of their ranks in the group
  StoreBarrier(StorePtr store, int rank, std::vector<int> world_ranks)
      : store_(std::move(store)), rank_(rank), world_ranks_(std::move(world_ranks)) {}

  /// Returns true on all ranks once all have called it, or throws on all; false once is_in_vain() is true.
  ///
  /// what    the beginning of the error's message
  /// throws  MissingRanks once a rank has waited for that time; c10::Error if the store is unreachable
  bool meet(const std::string& what, std::chrono::milliseconds timeout,
            const std::function<bool()>& give_up = {}, const std::function<bool()>& is_in_vain = {}) {
    if (world_ranks_.size() == 1) return true;
    const auto last = std::exchange(keys_, "barrier/" + std::to_string(round_++) + "/");
    store_->set(keys_ + std::to_string(rank_), "here");
    if (store_->add(keys_ + "count", 1) == static_cast<std::int64_t>(world_ranks_.size())) {
      give_verdict(kAllArrived);
    } else if (!wait_for_verdict(timeout, give_up, is_in_vain)) {
      if (is_in_vain && is_in_vain() && !store_->check({keys_ + "verdict"})) return false;
      std::string absent;  // by their ranks in the group
      for (std::size_t rank = 0; rank < world_ranks_.size(); ++rank)
        if (!store_->check({keys_ + std::to_string(rank)})) absent += c10::str(' ', rank);
      give_verdict(absent.empty() ? kAllArrived
                                  : c10::str(std::chrono::duration<double>(timeout).count(), absent));
    }
    const auto verdict = store_->get_to_str(keys_ + "verdict");
    if (verdict != kAllArrived) fail(what, verdict);
    if (last.empty()) return true;
    // Everyone in this round has seen the last verdict.
    store_->deleteKey(last + std::to_string(rank_));
    if (rank_ == 0)
      for (const char* name : {"count", "verdict"}) store_->deleteKey(last + name);
    return true;
  }

 private:
  static constexpr const char* kAllArrived = "all";

  /// False if there is none in time, or once is_in_vain() is true.
  bool wait_for_verdict(std::chrono::milliseconds timeout, const std::function<bool()>& give_up,
                        const std::function<bool()>& is_in_vain) {
    const auto is_over = [&] { return is_in_vain && is_in_vain(); };
    if (give_up) {
      bool given = false;
      const auto is_done = [&] { return (given = store_->check({keys_ + "verdict"})) || is_over(); };
      return wait_unless(give_up, timeout, is_done) && given;
    }
    // The store tells at once: rank 0, which has it, may end as soon as it has left the barrier itself.
    const auto until = std::chrono::steady_clock::now() + timeout;
    do {
      const auto rest =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      const Quietly quietly;
      try {
        store_->wait({keys_ + "verdict"},
                     std::clamp(rest, std::chrono::milliseconds(1), kLookInBarrierEvery));
        return true;
      } catch (const c10::DistStoreError&) {
      }
    } while (!is_over() && std::chrono::steady_clock::now() < until);
    return false;
  }

  void give_verdict(const std::string& verdict) {
    store_->compareSet(keys_ + "verdict", "", verdict);  // unless there already is one
  }

  [[noreturn]] void fail(const std::string& what, const std::string& verdict) {
    std::istringstream text(verdict);
    std::string seconds;
    text >> seconds;
    std::vector<int> ranks;
    for (std::size_t rank = 0; text >> rank;) ranks.push_back(world_ranks_[rank]);
    std::sort(ranks.begin(), ranks.end());

    // Rank 0 may host the store and end on this error: let the others read the verdict first.
    const auto came = static_cast<std::int64_t>(world_ranks_.size() - ranks.size());
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    store_->add(keys_ + "read", 1);
    while (rank_ == 0 && store_->add(keys_ + "read", 0) < came && std::chrono::steady_clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw MissingRanks(c10::str(what, ": expected ", world_ranks_.size(), " ranks within ", seconds, " s, ",
                                describe_ranks(ranks), " did not arrive"),
                       ranks);
  }

  StorePtr store_;
  int rank_;
  std::vector<int> world_ranks_;
  int round_ = 0;
  std::string keys_;  // the prefix of this round's keys
};

}  // namespace

struct ProcessGroup::State : std::enable_shared_from_this<State> {
  GroupParts parts;  // a one-rank group gets its store and device in make()
  WorkerEnv env;
  MeetingPlace* hosts = nullptr;  // where this rank hosts the store of all ranks
  std::string interface;
  std::optional<StoreBarrier> barrier;
  std::function<bool()> give_up;
  int subgroups = 0;
  bool closed = false;
  std::once_flag made;
  c10::intrusive_ptr<c10d::ProcessGroup> group;

  void make() {
    std::call_once(made, [&] {
      if (!parts.store) parts.store = c10::make_intrusive<c10d::HashStore>();
      if (!parts.gloo_device) parts.gloo_device = make_gloo_device(env, interface, parts.recovers);
      group = make_c10d_group(parts);
    });
  }

  void connect() try {
    if (parts.nccl) return make();  // it needs this thread's device
    call_unless(give_up, [self = shared_from_this()] { self->make(); });
  } catch (...) {
    forget_gloo_devices();
    throw;
  }
};

ProcessGroup ProcessGroup::connect(const WorkerEnv& of_process, const Options& options) {
  auto state = std::make_shared<State>();
  WorkerEnv env = of_process;
  auto& place = meeting_place(env, options.init_method);
  if (!place.has_socket) env.store_fd.reset();
  GroupParts& parts = state->parts;
  parts.rank = env.rank;
  parts.size = env.world_size;
  parts.name = std::to_string(place.groups);  // "0" is PyTorch's name for the group of all ranks
  parts.timeout = options.timeout.value_or(std::chrono::minutes(30));
  parts.nccl_timeout = options.timeout.value_or(std::chrono::minutes(10));
  state->env = env;
  state->give_up = options.give_up;
  state->interface = checked_interface(options.interface);
  parts.world_ranks.resize(static_cast<std::size_t>(env.world_size));
  std::iota(parts.world_ranks.begin(), parts.world_ranks.end(), 0);
  check_store(env, options.init_method);
  const auto memory = process_env("DDPRUN_SHARED_MEMORY").value_or("1");
  if (options.shared_memory && memory != "0" && memory != "1")
    throw UsageError("DDPRUN_SHARED_MEMORY: expected 0 or 1, got '" + memory + "'");
  parts.shares_memory = options.shared_memory && memory == "1";

  const RankDevice device = choose_device(options.device, env.local_rank, env.local_world_size);
  parts.device = device.device;
  std::vector<std::string> devices = {device.whole_gpu};
  if (env.world_size > 1) {
    const SlowWaitWarning warning(
        options.notice_after,
        c10::str("rank ", env.rank, " waits at ", describe_meeting_place(env, options.init_method),
                 " for all ", env.world_size, " ranks, up to ",
                 std::chrono::ceil<std::chrono::seconds>(options.connect_timeout).count(), " s"));
    if (options.give_up && options.init_method == "env://" && !hosts_store(env, options.init_method)) {
      // A wait for the store's host that can be given up, unlike that in the store itself.
      wait_for_port(env.master_addr, static_cast<std::uint16_t>(env.master_port), options.connect_timeout,
                    options.give_up);
      if (options.give_up()) throw RoundOver();
    }
    place.has_socket = false;
    parts.store = call_unless(options.give_up, [env, method = options.init_method, number = place.groups,
                                                patience = options.connect_timeout] {
      return make_store(env, method, number, patience);
    });
    state->barrier.emplace(parts.store, env.rank, parts.world_ranks);
    state->barrier->meet("connecting at " + describe_meeting_place(env, options.init_method),
                         options.connect_timeout, options.give_up);
    ++place.groups;
    if (hosts_store(env, options.init_method)) state->hosts = &place;
    if (options.device != DeviceChoice::kCpu) {
      // NCCL lets ranks share a GPU that it takes for GPUs of different hosts.
      const auto host = options.backend == BackendChoice::kNccl ? process_env("NCCL_HOSTID") : std::nullopt;
      const auto key = [](int of) { return "device/" + std::to_string(of); };
      parts.store->set(key(env.rank), device.whole_gpu + (host ? " of host " + *host : ""));
      devices.clear();
      for (int of = 0; of < env.world_size; ++of) devices.push_back(parts.store->get_to_str(key(of)));
    }
  }
  parts.recovers = static_cast<bool>(options.give_up);
  parts.nccl = use_nccl(options.backend, devices);
  if (const auto shared = shared_gpu(devices);
      env.rank == 0 && options.backend == BackendChoice::kAuto && !shared.empty())
    log_warning(shared +
                ", which NCCL does not support: all collectives go through the CPU (Gloo); start "
                "at most one rank for each GPU");
  // Simulated nodes on one host use the network.
  parts.one_host = env.world_size > 1 && env.local_world_size == env.world_size;
  if (env.world_size > 1) state->connect();
  return ProcessGroup(std::move(state));
}

int ProcessGroup::rank() const { return state_->parts.rank; }
int ProcessGroup::size() const { return state_->parts.size; }
bool ProcessGroup::communicates() const {
  const char* alone = std::getenv("DDPRUN_WORLD_OF_ONE");
  return size() > 1 || (alone != nullptr && std::string_view(alone) == "1");
}
const std::vector<int>& ProcessGroup::world_ranks() const { return state_->parts.world_ranks; }
at::Device ProcessGroup::device() const { return state_->parts.device; }
std::string ProcessGroup::backend() const { return state_->parts.nccl ? "nccl" : "gloo"; }

std::optional<ProcessGroup> ProcessGroup::new_group(std::vector<int> ranks,
                                                    std::optional<std::chrono::milliseconds> timeout) const {
  ensure(!state_->closed, "the process group is closed");
  std::sort(ranks.begin(), ranks.end());
  check_new_group(*this, ranks);
  const std::string name = state_->parts.name + "." + std::to_string(++state_->subgroups);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) {
    if (state_->parts.nccl_backend && ranks.size() > 1)
      cuda_plugin().stay_out_of_split(*state_->parts.nccl_backend, device());
    return std::nullopt;
  }

  auto state = std::make_shared<State>();
  GroupParts& parts = state->parts;
  parts = state_->parts;
  parts.rank = static_cast<int>(own - ranks.begin());
  parts.size = static_cast<int>(ranks.size());
  parts.name = name;
  parts.is_whole_job = false;
  parts.one_host = false;  // memory and a thread for every subgroup would be too much
  parts.timeout = timeout.value_or(parts.timeout);
  parts.nccl_timeout = timeout.value_or(parts.nccl_timeout);
  state->env = state_->env;
  state->give_up = state_->give_up;
  state->interface = state_->interface;
  parts.world_ranks.clear();
  for (const int of_parent : ranks)
    parts.world_ranks.push_back(world_ranks()[static_cast<std::size_t>(of_parent)]);
  parts.store.reset();
  if (ranks.size() == 1) {
    parts.nccl_backend.reset();  // a split would wait for the parent's other ranks
  } else {
    parts.store = c10::make_intrusive<c10d::PrefixStore>("group_" + name, state_->parts.store);
    state->barrier.emplace(parts.store, parts.rank, parts.world_ranks);
    state->connect();
  }
  return ProcessGroup(std::move(state));
}

void ProcessGroup::barrier(std::optional<std::chrono::milliseconds> timeout) const {
  ensure(!state_->closed, "the process group is closed");
  if (!state_->barrier) return;
  record_barrier(*state_->group, [&](const std::function<bool()>& is_in_vain) {
    return state_->barrier->meet("barrier", timeout.value_or(state_->parts.timeout), state_->give_up,
                                 [&] { return is_in_vain() || has_lost_a_rank(); });
  });
}

bool ProcessGroup::has_lost_a_rank() const {
  return size() > 1 && state_->group &&
         state_->group->getBackend(at::kCPU)->getError() != c10d::ErrorType::SUCCESS;
}

void ProcessGroup::close() {
  if (std::exchange(state_->closed, true)) return;
  if (state_->group) {
    if (state_->parts.nccl) cuda_plugin().synchronize(device());  // the barrier covers only the CPU
    if (size() > 1) record_close(*state_->group)->wait();
    state_->group->shutdown();
  }
  if (state_->parts.is_whole_job) take_nccl_backends();
  state_->group.reset();
  state_->parts.nccl_backend.reset();
  state_->barrier.reset();
  state_->parts.gloo_device.reset();
  if (state_->hosts != nullptr) state_->hosts->kept = state_->parts.store;
  state_->parts.store.reset();  // last: it has the group's keys
}

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::handle() const {
  ensure(!state_->closed, "the process group is closed");
  state_->make();
  return state_->group;
}

}  // namespace ddprun::ddp
