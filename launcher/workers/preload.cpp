#include "launcher/workers/preload.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/recovery.h>
#include <ddprun/common/text.h>
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {

extern const std::string_view kPreloadText;

namespace asio = boost::asio;
namespace {

constexpr std::size_t kMostAsked = 16;  // at a time: the socket's buffer has a limit
constexpr std::chrono::seconds kForkPatience{10};
constexpr std::chrono::seconds kLongestPause{60};
constexpr std::chrono::milliseconds kGiveUpLook{100};

/// What runs instead of the script if Python does not import our sitecustomize.
std::string refusing_program(int fd) {
  return "import os; os.write(" + std::to_string(fd) +
         R"(, b'{"refused": "this Python does not import sitecustomize from PYTHONPATH"}'))";
}

void put_in_front_of_python_path(std::vector<std::string>& env, const std::filesystem::path& folder) {
  constexpr std::string_view kName = "PYTHONPATH=";
  const auto given = std::ranges::find_if(env, [&](const auto& text) { return text.starts_with(kName); });
  if (given == env.end())
    env.push_back(std::string(kName) + folder.string());
  else
    given->insert(kName.size(), folder.string() + ":");
}

/// Whether a fork can be given the arguments: the interpreter has the script's name already.
bool same_program(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  const std::size_t words = other.size() > 2 && other[2] == "-m" ? 4 : 3;
  return one.size() == other.size() &&
         std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(std::min(words, one.size())),
                    other.begin());
}

}  // namespace

Preload::Preload(asio::io_context& io, Guard& guard, std::string job_id, std::vector<std::string> modules,
                 std::string program, WorkerSpec worker, std::filesystem::path folder)
    : io_(io),
      guard_(guard),
      modules_(std::move(modules)),
      program_(std::move(program)),
      worker_(std::move(worker)),
      folder_(folder.lexically_normal()),
      job_id_(std::move(job_id)),
      reading_(io),
      restart_(io),
      news_(io) {
  std::erase(worker_.env, "PYTHONPATH=");  // with our folder in front it would name the current one
  try {
    if (folder_.string().find(':') != std::string::npos)
      throw IoError(folder_, "a folder in PYTHONPATH cannot have a ':' in its name (TMPDIR)");
    std::filesystem::create_directory(folder_);
    std::ofstream file(folder_ / "sitecustomize.py");
    file << kPreloadText;
    if (!file.flush()) throw IoError(folder_, std::strerror(errno));
    start();
  } catch (const std::exception& error) {
    give_up_on_it(error.what());
  }
}

void Preload::start() {
  auto [ours, theirs] = socket_pair();
  WorkerSpec process = worker_;
  put_in_front_of_python_path(process.env, folder_);
  process.env.push_back("DDPRUN_PRELOAD_FD=" + std::to_string(theirs.get()));
  process.argv = {worker_.argv[0], worker_.argv[1], "-c", refusing_program(theirs.get())};
  process.argv.insert(process.argv.end(), worker_.argv.begin() + 2, worker_.argv.end());
  process.inherited_fds = {theirs.get()};
  const nlohmann::json settings{
      {"modules", modules_}, {"launcher", ::getpid()}, {"traceable", worker_.traceable}};
  send_packet(ours.get(), settings.dump());
  const UniqueFd dev_null = open_dev_null(O_RDONLY);
  const StandardFds fds{dev_null.get(), STDERR_FILENO, STDERR_FILENO};
  auto started = start_process(program_, process, fds, guard_.announce_fd());
  if (const auto* failure = std::get_if<StartFailure>(&started))
    throw std::system_error(failure->error, std::generic_category(), failure->step);
  process_ = std::move(std::get<Process>(started));
  started_ = true;
  guard_.set_apart(process_->pid);
  socket_ = std::move(ours);
  state_ = State::kImporting;
  reading_.assign(socket_.get());
  watch();
}

/// Workers start the ordinary way from now on.
void Preload::give_up_on_it(const std::string& reason) {
  log_warning("--preload: " + printable(reason) + ": every worker imports the modules itself");
  stop_process();
}

void Preload::watch() {
  reading_.async_wait(asio::posix::stream_descriptor::wait_read,
                      [this, token = std::weak_ptr(token_)](const boost::system::error_code& error) {
                        if (error || token.expired()) return;
                        take_packets();
                        news_.cancel();
                        if (socket_) watch();
                      });
}

void Preload::take_packets() {
  char bytes[4096];
  while (socket_) {
    const ssize_t size = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return lose();
    take(std::string(bytes, static_cast<std::size_t>(size)));
  }
}

void Preload::take(const std::string& packet) {
  const nlohmann::json said = nlohmann::json::parse(packet, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object()) return;
  const auto text = [&](const char* name) { return said.value(name, std::string()); };
  if (said.contains("fork") || said.contains("failed")) {
    const auto asked = asked_.find(said.value(said.contains("fork") ? "fork" : "failed", -1));
    if (asked == asked_.end()) return;  // too late: it ends, for its socket is closed
    UniqueFd channel = std::move(asked->second);
    asked_.erase(asked);
    if (said.contains("fork"))
      take_fork(said.value("pid", -1), std::move(channel));
    else
      fork_failure_ = text("why");
    ask();
  } else if (state_ != State::kImporting) {
    return;
  } else if (said.contains("ready")) {
    state_ = State::kReady;
    was_ready_ = true;
    pause_ = std::chrono::seconds(1);
  } else if (said.contains("missing") && !was_ready_) {
    missing_ = text("missing");
    stop_process();
  } else {
    give_up_on_it(text(said.contains("missing") ? "missing" : "refused"));
  }
}

void Preload::take_fork(pid_t pid, UniqueFd channel) {
  if (pid <= 0 || !lives(pid)) return;  // not, or no longer, a child of ours
  guard_.watch(pid);
  forks_.push_back(
      {{pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))}, std::move(channel)});
}

/// The process has ended without a word.
void Preload::lose() {
  if (!was_ready_) return give_up_on_it("Python ended before it had imported the modules");
  log_warning("--preload: the process " + std::to_string(process_->pid) +
              " with the modules has ended: another one is starting");
  stop_process();
  start_later();
}

void Preload::start_later() {
  restart_.expires_after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  restart_.async_wait([this, token = std::weak_ptr(token_)](const boost::system::error_code& error) {
    if (error || token.expired()) return;
    try {
      start();
    } catch (const std::exception& failure) {
      give_up_on_it(failure.what());
    }
  });
}

asio::awaitable<void> Preload::wait(const std::function<bool()>& done, Clock::time_point deadline,
                                    const std::function<bool()>& give_up) {
  while (!done() && !give_up() && Clock::now() < deadline) {
    news_.expires_at(std::min(deadline, Clock::now() + kGiveUpLook));
    boost::system::error_code ignored;
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<void> Preload::imported(std::optional<Clock::time_point> deadline,
                                        std::optional<std::chrono::milliseconds> patience,
                                        const std::function<bool()>& give_up) {
  const std::function<bool()> done = [this] { return state_ != State::kImporting; };
  const auto latest = patience ? Clock::now() + *patience : Clock::time_point::max();
  co_await wait(done, std::min(latest, deadline.value_or(latest)), give_up);
  if (!done() && !give_up() && Clock::now() >= latest)
    give_up_on_it("the imports take longer than --hang-timeout");
  if (!missing_.empty()) throw UsageError("--preload: " + printable(missing_));
}

asio::awaitable<void> Preload::have(std::size_t count, const std::function<bool()>& give_up) {
  if (state_ != State::kReady) co_return;
  wanted_ = count;
  fork_failure_.clear();
  ask();
  const std::function<bool()> done = [this] { return forks_.size() >= wanted_ || asked_.empty(); };
  for (auto had = forks_.size(); !done() && !give_up(); had = forks_.size()) {
    const std::function<bool()> moved = [&] { return done() || forks_.size() > had; };
    co_await wait(moved, Clock::now() + kForkPatience, give_up);
    if (!moved()) break;
  }
  if (!done() && !give_up()) fork_failure_ = "it does not answer";
  asked_.clear();
  wanted_ = 0;
  // The workers may need what the forks take, such as processes (ulimit -u).
  if (!fork_failure_.empty()) give_up_on_it(std::exchange(fork_failure_, {}));
}

void Preload::ask() {
  while (fork_failure_.empty() && forks_.size() + asked_.size() < wanted_ && asked_.size() < kMostAsked)
    if (!ask_for_one()) return;
}

bool Preload::ask_for_one() try {
  auto [ours, theirs] = socket_pair();
  const int number = ++last_number_;
  if (!send_packet(socket_.get(), std::to_string(number), {theirs.get()})) return false;
  asked_[number] = std::move(ours);
  return true;
} catch (const std::system_error& error) {
  fork_failure_ = error.what();
  return false;
}

std::optional<Process> Preload::become(const WorkerSpec& worker, const StandardFds& fds) {
  if (!same_program(worker.argv, worker_.argv)) return {};  // --expand
  while (!forks_.empty()) {
    Fork fork = std::move(forks_.front());
    forks_.erase(forks_.begin());
    if (lives(fork.process.pid) && make_worker(fork.process.pid, fork.channel.get(), worker, fds, worker_))
      return std::move(fork.process);
    drop(fork);
  }
  return {};
}

void Preload::drop(const Fork& fork) {
  signal_group(fork.process, SIGKILL);
  guard_.forget(fork.process.pid);
}

void Preload::drop_forks() {
  for (const Fork& fork : forks_) drop(fork);
  forks_.clear();
}

void Preload::stop_process() {
  state_ = State::kNone;
  if (reading_.is_open()) reading_.release();
  socket_.reset();
  asked_.clear();
  drop_forks();
  if (!process_) return;
  signal_group(*process_, SIGKILL);
  guard_.forget(process_->pid);
  guard_.has_ended(process_->pid);
  process_.reset();
}

void Preload::end() {
  restart_.cancel();
  if (!std::exchange(started_, false)) return;
  stop_process();
  kill_job({}, job_id_);  // what the imports have started; whatever the workers left was ended with them
}

}  // namespace ddprun::launcher
