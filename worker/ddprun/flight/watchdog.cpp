#include <ddprun/flight/watchdog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include <ddprun/common/text.h>

namespace ddprun::ddp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kTail = 64;                // collectives in an answer
constexpr std::size_t kShortTail = 2;            // in an unrequested position
constexpr milliseconds kKnownWithin{200};        // ddprun has told the reason of a failure by then
constexpr const char* kQuestions = "questions";  // number of questions so far
constexpr const char* kAsking = "asking";        // the rank that asked last
constexpr const char* kLeft = "left";            // number of ranks that no longer need the board
constexpr std::uint64_t kCompared = 4;           // calls before the one in which a rank waits

/// What a rank has published on the board.
struct FlightPosition {
  std::int64_t answers = 0;  ///< the last question it has answered
  std::int64_t dumped = 0;   ///< the last question for which it has written its ring
  FlightDump flight;         ///< the newest part of its ring; reason: its failure, if it has failed

  bool failed() const { return !flight.reason.empty(); }
};

std::string to_text(const FlightPosition& position) {
  return std::to_string(position.answers) + " " + std::to_string(position.dumped) + "\n" +
         to_json(position.flight);
}

std::optional<FlightPosition> parse_flight_position(const std::string& text) {
  std::istringstream stream(text);
  FlightPosition position;
  stream >> position.answers >> position.dumped;
  try {
    position.flight = parse_flight_dump({std::istreambuf_iterator<char>(stream), {}});
    return position;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::atomic<bool> failed = false;

std::mutex known_mutex;
std::function<bool(milliseconds)> failure_is_known;

bool is_known(milliseconds within) {
  const auto known = (std::scoped_lock(known_mutex), failure_is_known);
  return known && known(within);
}

std::string position_key(int rank) { return "position_" + std::to_string(rank); }

/// Where a rank that waits in a call posts what it calls there; the first one does.
std::string waiting_key(const std::string& group, std::uint64_t number) {
  return "waiting/" + group + "/" + std::to_string(number);
}

/// Where a rank that has closed the job's group posts that it does not make this call of a group.
std::string closed_key(const std::string& group, std::uint64_t number) {
  return "closed/" + group + "/" + std::to_string(number);
}

/// What is the same on all ranks of a collective. Not the bucket: a rank that joins the others' steps does
/// not know it.
std::string signature_text(const CollectiveRecord& call) {
  std::ostringstream text;
  text << call.op << ' ' << call.elements << ' ' << call.dtype << ' ' << call.tensors << ' ' << call.peer;
  return text.str();
}

/// Since when this rank waits in the call; 0: it does not, as far as is known.
std::int64_t waits_since(const CollectiveRecord& call) {
  if (!call.pending() || call.sequence == 0) return 0;
  return call.told_by_wait ? call.awaited_ns : call.created_ns;
}

}  // namespace

bool collective_failed() { return failed; }

void set_failure_is_known(std::function<bool(milliseconds)> known) {
  const std::scoped_lock lock(known_mutex);
  failure_is_known = std::move(known);
}

struct Watchdog::Shared {
  Shared(FlightRecorder& recorder, Board board, const Options& options)
      : recorder(recorder), board(std::move(board)), options(options) {}

  FlightRecorder& recorder;
  const Board board;  // used by the thread only
  const Options options;

  // -- by the thread only --
  std::int64_t answered = 0, dumped = 0;    // the last question answered, and the last with a written ring
  int asker = -1;                           // the rank that asked last
  Clock::time_point published{};            // when the position was last published
  std::map<int, FlightPosition> positions;  // the other ranks', as last read
  bool told_close = false, told_in_vain = false;

  // -- under the mutex --
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  std::deque<std::function<void()>> jobs;  // for the thread
  std::uint64_t jobs_given = 0, jobs_done = 0;
  std::string failure;
  std::vector<RankFlight> flights;                     // all ranks, after the last question
  bool board_gone = false;                             // it failed once and is no longer used
  std::map<FlightRecorder::Group, std::string> names;  // of the job's groups
  bool in_vain = false;

  std::mutex explaining;  // one at a time
  std::string explained_group, explanation;
  std::uint64_t explained_sequence = 0;

  /// The thread's: does the jobs, answers the other ranks, and publishes the position.
  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait_for(lock, options.look_every, [this] { return stop || !jobs.empty(); });
      if (stop) break;
      std::function<void()> job;
      if (!jobs.empty()) job = std::move(jobs.front()), jobs.pop_front();
      lock.unlock();
      if (job) job();
      on_board([&] {
        answer();
        if (asker >= 0) read_positions({asker});  // for its findings
        if (Clock::now() - published < options.publish_every) return;
        publish(kShortTail);
        compare_waits();
      });
      lock.lock();
      if (job) ++jobs_done, changed.notify_all();
    }
    lock.unlock();
    leave();
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  /// Gives the thread a job, which may outlive the caller; false if it is not done within that time.
  bool have_done(std::function<void()> job, milliseconds within) {
    std::unique_lock lock(mutex);
    jobs.push_back(std::move(job));
    changed.notify_all();
    const auto number = ++jobs_given;
    return changed.wait_for(lock, within, [&] { return jobs_done >= number || ended; }) && !ended;
  }

  std::string failure_now() { return (std::scoped_lock(mutex), failure); }

  /// The newest of the job's groups, under the names that all ranks know.
  std::vector<CollectiveRecord> records(std::size_t count) {
    const auto known = (std::scoped_lock(mutex), names);
    auto calls = recorder.records(count, [&](auto group) { return known.contains(group); });
    for (auto& call : calls) call.group = known.at(call.group_number);
    return calls;
  }

  /// Finds out whether this rank waits in vain. A rank that waits in a call for seconds posts it on the
  /// board, where each other one that waits compares it with its own call of that number.
  void compare_waits() {
    const auto calls = records(kTail);
    std::set<FlightRecorder::Group> seen;
    for (const auto& call : calls) {
      const auto since = waits_since(call);
      const bool closes = call.op == kCloseOp;
      const auto at_least = closes ? options.publish_every : options.stuck_after;
      if (since == 0 || epoch_now_ns() - since < std::chrono::nanoseconds(at_least).count()) continue;
      if (!seen.insert(call.group_number).second) continue;  // it waits in the first
      if (closes)
        post_close(call);
      else if (differs_from_others(call, calls) && !std::exchange(told_in_vain, true)) {
        (std::scoped_lock(mutex), in_vain = true);
        if (options.on_waiting_in_vain) std::thread(options.on_waiting_in_vain).detach();
      }
    }
  }

  /// Compares also a few earlier calls, which may have ended here: a broadcast does not wait for its
  /// receivers.
  bool differs_from_others(const CollectiveRecord& waiting, const std::vector<CollectiveRecord>& calls) {
    for (const auto& call : calls) {
      if (call.group_number != waiting.group_number || call.sequence == 0) continue;
      if (call.sequence + kCompared < waiting.sequence || call.sequence > waiting.sequence) continue;
      const auto key = waiting_key(call.group, call.sequence), what = signature_text(call);
      const auto posted = board.get({key, closed_key(call.group, call.sequence)});
      if (posted[1] || posted[0].value_or(what) != what) return true;
      if (!posted[0] && call.sequence == waiting.sequence) board.set(key, what);
    }
    return false;
  }

  void post_close(const CollectiveRecord& close) {
    if (std::exchange(told_close, true)) return;
    const auto known = (std::scoped_lock(mutex), names);
    for (const auto& [group, name] : known)
      board.set(closed_key(name, group == close.group_number ? close.sequence : recorder.calls(group) + 1),
                std::to_string(options.rank));
  }

  void publish(std::size_t tail) {
    const FlightDump flight = {options.rank, options.world_size, failure_now(), epoch_now_ns(),
                               records(tail)};
    board.set(position_key(options.rank), to_text({answered, dumped, flight}));
    published = Clock::now();
  }

  void dump(const std::string& why) {
    const std::string failed = failure_now();
    write_flight_dump(recorder, options.rank, options.world_size, failed.empty() ? why : failed);
  }

  /// Answers other ranks' new questions, first on the board, then with the ring's file.
  void answer() {
    const auto asked = board.add(kQuestions, 0);
    if (asked <= answered) return;
    answered = asked;
    publish(kTail);
    // The asking rank's failure explains ours if that rank has gone by then.
    const auto asking = board.get({kAsking})[0].value_or("?");
    asker = std::atoi(asking.c_str());
    read_positions({asker});
    dump("rank " + asking + " asked");
    dumped = asked;
    publish(kTail);
  }

  void read_positions(const std::vector<int>& ranks) {
    std::vector<std::string> keys;
    for (const int rank : ranks) keys.push_back(position_key(rank));
    const auto texts = board.get(keys);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!texts[i] || ranks[i] == options.rank) continue;
      if (auto position = parse_flight_position(*texts[i])) positions[ranks[i]] = std::move(*position);
    }
  }

  /// Asks all ranks for their positions, and waits for a bounded time until all have answered and written
  /// their rings, or failed. Returns the question's number.
  std::int64_t ask() {
    publish(kTail);  // before the question, so that everyone who sees it finds the reason
    board.set(kAsking, std::to_string(options.rank));
    const auto question = board.add(kQuestions, 1);
    answered = dumped = question;
    publish(kTail);  // also answers questions asked just before
    const auto deadline = Clock::now() + options.answer_within;
    std::vector<int> busy(static_cast<std::size_t>(options.world_size));
    std::iota(busy.begin(), busy.end(), 0);
    std::erase(busy, options.rank);
    for (;; std::this_thread::sleep_for(milliseconds(20))) {
      answer();  // others may also ask
      read_positions(busy);
      std::erase_if(busy, [&](int rank) {
        const auto found = positions.find(rank);
        return found != positions.end() && (found->second.dumped >= question || found->second.failed());
      });
      if (busy.empty() || Clock::now() >= deadline) return question;
    }
  }

  void ask_for_flights() {
    std::int64_t question = 0;
    const bool reached = on_board([&] { question = ask(); });
    const auto own = records(kTail);
    const std::scoped_lock lock(mutex);
    flights.clear();
    for (const auto& [rank, position] : positions) {
      const bool answers = reached && (position.answers >= question || position.failed());
      flights.push_back({rank, answers, position.flight.reason, position.flight.collectives});
    }
    flights.push_back({options.rank, true, "", own});
  }

  /// False if the board is gone, now or earlier.
  template <typename Action>
  bool on_board(Action action) {
    if ((std::scoped_lock(mutex), board_gone)) return false;
    try {
      action();
      return true;
    } catch (const std::exception&) {
      const std::scoped_lock lock(mutex);
      board_gone = true;
      return false;
    }
  }

  /// The board ends with rank 0, which briefly waits until the others no longer need it, unless one was lost.
  void leave() {
    if (!failure_now().empty()) return;
    on_board([&] {
      const auto deadline = Clock::now() + std::min<milliseconds>(options.answer_within, milliseconds(1000));
      auto gone = board.add(kLeft, 1);
      while (options.rank == 0 && gone < options.world_size && Clock::now() < deadline &&
             !is_known(milliseconds(0))) {
        std::this_thread::sleep_for(milliseconds(1));
        gone = board.add(kLeft, 0);
      }
    });
  }
};

Watchdog::Watchdog(FlightRecorder& recorder, Board board, const Options& options)
    : shared_(std::make_shared<Shared>(recorder, std::move(board), options)) {
  failed = false;  // of an earlier round
  std::thread([shared = shared_] { shared->serve(); }).detach();
}

Watchdog::~Watchdog() { stop(); }

void Watchdog::add_group(FlightRecorder::Group group, std::string name) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->names[group] = std::move(name);
}

bool Watchdog::waits_in_vain() const { return (std::scoped_lock(shared_->mutex), shared_->in_vain); }

void Watchdog::stop() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  // Abandons a thread that hangs in the board: it shares ownership of everything it uses.
  shared_->changed.wait_for(lock, shared_->options.answer_within, [this] { return shared_->ended; });
}

void Watchdog::announce_failure(const std::string& message, milliseconds within) {
  if (const std::scoped_lock lock(shared_->mutex); shared_->failure.empty())
    shared_->failure = one_line(message);
  auto* const shared = shared_.get();  // the thread owns it too
  shared->have_done([shared] { shared->on_board([shared] { shared->publish(kTail); }); }, within);
}

bool Watchdog::dump_everywhere(const std::string& reason) {
  auto* const shared = shared_.get();
  const auto ask = [shared, reason] {
    shared->dump(reason);
    shared->ask_for_flights();
  };
  return shared->have_done(ask, shared->options.answer_within + std::chrono::seconds(1)) &&
         !(std::scoped_lock(shared->mutex), shared->board_gone);
}

std::string Watchdog::explain(FlightRecorder::Id id, const std::vector<int>& members,
                              const std::string& backends_message) {
  failed = true;
  Shared& shared = *shared_;
  const std::scoped_lock one_at_a_time(shared.explaining);
  auto call = shared.recorder.first_pending(id);
  shared.recorder.set_failed(id);
  const auto cause = one_line(backends_message);
  if (!call) return cause;
  if (is_known(kKnownWithin)) {
    const std::scoped_lock lock(shared.mutex);
    shared.failure = cause;  // nobody waits for this rank at the end
    return cause;
  }
  if (shared.explained_group == call->group && shared.explained_sequence <= call->sequence)
    return shared.explanation;

  if (const std::scoped_lock lock(shared.mutex); shared.names.contains(call->group_number))
    call->group = shared.names[call->group_number];
  const auto waited_ns = epoch_now_ns() - call->created_ns;
  const std::string what = describe_with_number(*call);
  // Tells the others now that this rank has failed here.
  if (const std::scoped_lock lock(shared.mutex); shared.failure.empty()) shared.failure = what + ": " + cause;
  const bool asked = dump_everywhere(what + " failed");
  const auto flights = (std::scoped_lock(shared.mutex), shared.flights);
  shared.explanation = what + ": " +
                       why_it_failed(*call, waited_ns, shared.options.rank, members, flights,
                                     /*board_gone=*/!asked) +
                       " [" + cause + "]";
  {
    const std::scoped_lock lock(shared.mutex);
    shared.failure = shared.explanation;
  }
  announce_failure(shared.explanation);
  // The store ends with rank 0: give the others a moment to read its findings.
  if (asked && shared.options.rank == 0) std::this_thread::sleep_for(3 * shared.options.look_every);
  shared.explained_group = call->group;
  shared.explained_sequence = call->sequence;
  return shared.explanation;
}

}  // namespace ddprun::ddp
