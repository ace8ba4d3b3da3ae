#include <ddprun/flight/record_collectives.h>

#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ddprun/flight/watchdog.h>

namespace ddprun::ddp {
namespace {

/// The error's first line, without c10's stack trace.
std::string message_of(const std::exception_ptr& exception) {
  std::string text = "unknown error";
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  return text.substr(0, text.find('\n'));
}

struct Quiet {
  std::mutex mutex;
  int users = 0, level = 0;
};

Quiet& quiet() {
  static auto* const quiet = new Quiet;  // threads may outlive main()
  return *quiet;
}

Board board_of(const c10::intrusive_ptr<c10d::Store>& store) {
  Board board;
  board.set = [store](const std::string& key, const std::string& value) {
    const Quietly quietly;
    store->set(key, value);
  };
  board.add = [store](const std::string& key, std::int64_t amount) {
    const Quietly quietly;
    return store->add(key, amount);
  };
  board.get = [store](const std::vector<std::string>& keys) {
    const Quietly quietly;
    std::vector<std::optional<std::string>> values;
    const auto text = [](const std::vector<std::uint8_t>& bytes) {
      return std::string(bytes.begin(), bytes.end());
    };
    if (keys.size() > 1 && store->hasExtendedApi() && store->check(keys)) {
      for (const auto& bytes : store->multiGet(keys)) values.emplace_back(text(bytes));
    } else {
      for (const auto& key : keys)
        values.push_back(store->check({key}) ? std::optional(text(store->get(key))) : std::nullopt);
    }
    return values;
  };
  return board;
}

struct CurrentWatchdog {
  std::mutex mutex;
  std::weak_ptr<Watchdog> watchdog;
  int rank = 0, world_size = 1;
};

CurrentWatchdog& current() {
  static auto* const current = new CurrentWatchdog;  // like flight_recorder()
  return *current;
}

std::shared_ptr<Watchdog> make_watchdog(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                        int rank, int size) {
  auto own = store->clone();  // a store blocks all users while one of them waits for a key
  Board board = board_of(c10::make_intrusive<c10d::PrefixStore>("flight/" + name, own));
  return std::make_shared<Watchdog>(
      flight_recorder(), std::move(board),
      Watchdog::Options{.rank = rank, .world_size = size, .on_waiting_in_vain = end_waiting});
}

}  // namespace

Quietly::Quietly() {
  const std::scoped_lock lock(quiet().mutex);
  if (quiet().users++ == 0) quiet().level = std::exchange(FLAGS_caffe2_log_level, 2);
}

Quietly::~Quietly() {
  const std::scoped_lock lock(quiet().mutex);
  if (--quiet().users == 0) FLAGS_caffe2_log_level = quiet().level;
}

c10::intrusive_ptr<c10d::Backend> record_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name,
                                                     std::vector<int> global_ranks) {
  if (backend->getSize() == 1) return backend;
  std::shared_ptr<Watchdog> watchdog;
  const bool whole_job = global_ranks.empty();
  {
    const std::scoped_lock lock(current().mutex);
    if (!whole_job) watchdog = current().watchdog.lock();
    if (!watchdog) {
      watchdog = make_watchdog(store, group_name, backend->getRank(), backend->getSize());
      global_ranks.clear();
      current().watchdog = watchdog;
      current().rank = backend->getRank();
      current().world_size = backend->getSize();
    }
  }
  if (global_ranks.empty()) {
    global_ranks.resize(static_cast<std::size_t>(backend->getSize()));
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  }
  const auto group = flight_recorder().add_group(group_name, global_ranks);
  watchdog->add_group(group, group_name);
  return make_recording_backend(std::move(backend), group, std::move(global_ranks), std::move(watchdog),
                                /*stops_watchdog=*/whole_job);
}

bool is_of_backend(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::DistError&) {
    return true;
  } catch (const std::exception& error) {
    return std::string_view(typeid(error).name()).starts_with("N4gloo");  // LibTorch lacks its headers
  } catch (...) {
    return false;
  }
}

std::exception_ptr explained(Watchdog& watchdog, std::uint64_t id, const std::vector<int>& members,
                             const std::exception_ptr& cause) {
  return std::make_exception_ptr(
      C10_BUILD_ERROR(DistBackendError, watchdog.explain(id, members, message_of(cause))));
}

std::shared_ptr<Watchdog> current_watchdog() {
  const std::scoped_lock lock(current().mutex);
  return current().watchdog.lock();
}

void announce_failure(const std::string& message) {
  if (const auto watchdog = current_watchdog()) watchdog->announce_failure(message);
}

std::exception_ptr explained_failure(const std::exception_ptr& cause) {
  if (!is_of_backend(cause)) return cause;
  const auto watchdog = current_watchdog();
  if (!watchdog) return cause;
  poll_recordings();
  const auto newest = flight_recorder().newest();
  if (!newest) return cause;
  const auto call = flight_recorder().first_pending(*newest);
  if (!call || !call->pending()) return cause;
  const auto members = flight_recorder().groups()[call->group];
  return explained(*watchdog, *newest, members, cause);
}

void dump_flight(const std::string& reason) {
  if (const auto watchdog = current_watchdog()) {
    watchdog->dump_everywhere(reason);
    return;
  }
  const std::scoped_lock lock(current().mutex);
  write_flight_dump(flight_recorder(), current().rank, current().world_size, reason);
}

}  // namespace ddprun::ddp
