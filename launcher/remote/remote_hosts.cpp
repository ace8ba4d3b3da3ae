#include "launcher/remote/remote_hosts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/output/output_stream.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/remote/start_order.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// From the tenth on, an sshd (of a jump host) refuses some of those that have not yet logged in.
constexpr std::size_t kMostStarting = 8;
constexpr std::size_t kMostSaid = std::size_t{16} << 10;  // bytes before ddprun has started
constexpr std::chrono::milliseconds kEndLook{100};
// Beyond what workers may take to end.
constexpr std::chrono::seconds kEndPatience{15};
constexpr int kSshFailed = 255;

std::string without_token(const std::string& variable) {
  return variable.starts_with(std::string(kTokenVariable) + "=") ? "" : variable;
}

/// As the shell calls it: on other hosts a link in it may lead elsewhere.
std::filesystem::path current_folder() {
  const std::filesystem::path shown = process_env("PWD").value_or("");
  std::error_code error;
  return shown.is_absolute() && std::filesystem::equivalent(shown, ".", error)
             ? shown
             : std::filesystem::current_path();
}

/// What the other side, or ssh, has said last: its reason. Without ddprun's name.
std::string last_line(const std::string& said) {
  std::string last;
  for (const std::string& line : printable_lines(said))
    if (!trimmed(line).empty()) last = trimmed(line);
  constexpr std::string_view kError = "error: ";
  if (const auto error = last.find(kError); last.starts_with("ddprun") && error != last.npos)
    last.erase(0, error + kError.size());
  return last;
}

}  // namespace

/// One host: a child that runs ssh, and its three streams.
class RemoteHosts::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(RemoteHosts& owner, std::size_t host)
      : owner_(owner), host_(host), in_(owner.io_), said_on_(owner.io_) {}

  const std::string name() const { return owner_.options_.hosts.all[host_].name(); }
  bool starting() const { return !started_ && !ended_; }
  bool runs() const { return started_ && !ended_; }
  bool ended() const { return ended_ && done(out_) && done(err_); }

  /// throws std::system_error
  void start(const std::string& order) {
    const Host& host = owner_.options_.hosts.all[host_];
    WorkerSpec ssh;
    ssh.argv = ssh_command(owner_.options_.hosts, host);
    for (const std::string& variable : owner_.environment_)
      if (!without_token(variable).empty()) ssh.env.push_back(variable);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    const UniqueFd reading(ends[0]);
    in_.assign(ends[1]);
    in_.non_blocking(true);
    OutputChannel out = open_output_pipe(), err = open_output_pipe();
    auto started = start_process(owner_.ssh_, ssh, {reading.get(), out.writing.get(), err.writing.get()},
                                 owner_.guard_.announce_fd());
    if (const auto* failure = std::get_if<StartFailure>(&started))
      throw std::system_error(failure->error, std::generic_category(), failure->step);
    process_ = std::move(std::get<Process>(started));
    owner_.guard_.set_apart(process_.pid, /*leaves_orphans=*/true);
    out_ = forward(std::move(out.reading), owner_.console_.out());
    said_on_.assign(err.reading.release());
    watch_said();
    send(order);
  }

  void send(const std::string& text) {
    if (ended_ || hung_up_) return;
    to_send_ += text;
    write();
  }

  /// One that has not yet reached its host has nothing there to end.
  void hang_up() {
    if (std::exchange(hung_up_, true) || ended_) return;
    if (!started_) signal_group(process_, SIGTERM);
    if (to_send_.empty()) in_.close();
  }

  void kill() {
    if (!ended_) signal_group(process_, SIGKILL);
  }

  /// A child of ddprun has ended, perhaps this one.
  void look() {
    if (ended_) return;
    const auto status = try_reap(process_);
    if (!status && lives(process_.pid)) return;
    ended_ = true;
    owner_.guard_.has_ended(process_.pid);
    owner_.guard_.forget(process_.pid);
    in_.close();
    read_said();
    if (said_on_.is_open()) said_on_.close();
    Ended ended{host_, started_, status ? to_exit_code(*status) : kSshFailed, ""};
    if (!started_) {
      const std::string last = last_line(said_);
      ended.reason = "cannot start ddprun there: " +
                     (last.empty() ? "ssh has ended with " +
                                         ddprun::describe(status.value_or(ExitStatus::exited(kSshFailed)))
                                   : last);
      ended.exit_code = LaunchError::kOwnFailure;
    } else if (ended.exit_code == kSshFailed || !status || status->kind == ExitStatus::Kind::kKilled) {
      ended.reason = "the ssh connection has ended";
      ended.exit_code = LaunchError::kOwnFailure;
    } else {
      ended.reason = "its ddprun has ended with " + ddprun::describe(*status);
    }
    ended.reason = name() + ": " + ended.reason;
    if (hung_up_) ended.exit_code = 0;  // as it was told to
    owner_.take(ended);
  }

 private:
  static bool done(const std::shared_ptr<OutputStream>& stream) {
    return !stream || !stream->open() || !stream->unread();
  }

  std::shared_ptr<OutputStream> forward(UniqueFd source, std::shared_ptr<ConsoleSink> sink) {
    auto stream =
        std::make_shared<OutputStream>(owner_.io_, std::move(source), OutputTargets{{}, std::move(sink)});
    stream->start([](std::string_view) {}, [] {});
    return stream;
  }

  void write() {
    while (!to_send_.empty()) {
      const ssize_t n = TEMP_FAILURE_RETRY(::write(in_.native_handle(), to_send_.data(), to_send_.size()));
      if (n < 0 && errno == EAGAIN) {
        if (std::exchange(writing_, true)) return;
        return in_.async_wait(in_.wait_write,
                              [weak = weak_from_this()](const boost::system::error_code& error) {
                                const auto self = weak.lock();
                                if (!self || error) return;
                                self->writing_ = false;
                                self->write();
                              });
      }
      to_send_.erase(0, n < 0 ? to_send_.size() : static_cast<std::size_t>(n));  // < 0: ssh is about to end
    }
    if (hung_up_ && in_.is_open()) in_.close();
  }

  void watch_said() {
    said_on_.async_wait(said_on_.wait_read,
                        [weak = weak_from_this()](const boost::system::error_code& error) {
                          const auto self = weak.lock();
                          if (self && !error && self->read_said()) self->watch_said();
                        });
  }

  /// Byte by byte, so that what follows ddprun's first line is left to its stream. False: nothing more comes.
  bool read_said() {
    char byte = 0;
    while (!started_ && said_on_.is_open()) {
      const ssize_t n = TEMP_FAILURE_RETRY(::read(said_on_.native_handle(), &byte, 1));
      if (n <= 0) return n < 0 && errno == EAGAIN;
      said_ += byte;
      if (byte == '\n' && said_.ends_with(kStartedLine)) take_start();
      if (said_.size() > kMostSaid) said_.erase(0, kMostSaid / 2);
    }
    return false;
  }

  void take_start() {
    started_ = true;
    said_.erase(said_.size() - std::strlen(kStartedLine));
    if (!said_.empty()) owner_.console_.err()->write(this, "", said_ + (said_.ends_with('\n') ? "" : "\n"));
    owner_.console_.err()->forget(this);
    err_ = forward(UniqueFd(said_on_.release()), owner_.console_.err());
    owner_.start_more();
  }

  RemoteHosts& owner_;
  std::size_t host_;
  Process process_;
  asio::posix::stream_descriptor in_;
  asio::posix::stream_descriptor said_on_;  ///< stderr, until its ddprun has started
  std::string said_;
  std::string to_send_;
  std::shared_ptr<OutputStream> out_, err_;
  bool writing_ = false, hung_up_ = false, started_ = false, ended_ = false;
};

RemoteHosts::RemoteHosts(asio::io_context& io, Guard& guard, Console& console, const Options& options,
                         std::vector<std::string> environment)
    : io_(io),
      guard_(guard),
      console_(console),
      options_(options),
      environment_(std::move(environment)),
      look_(io) {
  for (std::size_t host = options.hosts.all.size(); host-- > 0;)
    if (host != options.hosts.own) waiting_.push_back(host);
}

RemoteHosts::~RemoteHosts() {
  for (const auto& connection : connections_) connection->kill();
}

void RemoteHosts::start(JobEvents& events, std::function<void(const Ended&)> on_end) {
  on_end_ = std::move(on_end);
  ssh_ = find_program(options_.hosts.ssh[0], process_env("PATH").value_or("/bin:/usr/bin"));
  events.on_signal([this](int signal) { on_signal(signal); });
  start_more();
}

void RemoteHosts::start_more() {
  while (!waiting_.empty() && std::ranges::count_if(connections_, [](const auto& one) {
                                return one->starting();
                              }) < static_cast<std::ptrdiff_t>(kMostStarting)) {
    const std::size_t host = waiting_.back();
    waiting_.pop_back();
    StartOrder order;
    order.hosts = options_.hosts.all;
    order.own = host;
    order.port = options_.hosts.port;
    order.token = options_.hosts.token;
    order.prefix = options_.output.prefix.value_or(false);
    order.folder = current_folder();
    order.environment = environment_for_others(environment_, options_.hosts.env);
    order.words = options_.hosts.words;
    auto connection = std::make_shared<Connection>(*this, host);
    connection->start(encode_order(order));
    connections_.push_back(std::move(connection));
  }
}

void RemoteHosts::on_signal(int signal) {
  // Ctrl-Z stops this ddprun only: a stopped one could not be told to go on.
  if (signal == SIGTSTP || signal == SIGWINCH) return;
  const auto connections = connections_;  // an end may start another
  if (std::ranges::find(options_.ending_signals, signal) != options_.ending_signals.end()) hang_up_starting();
  for (const auto& connection : connections)
    signal == SIGCHLD ? connection->look() : connection->send("signal " + std::to_string(signal) + "\n");
}

void RemoteHosts::take(const Ended& ended) {
  look_.cancel();
  on_end_(ended);
  start_more();
}

/// There is no job any more for hosts that have not been reached.
void RemoteHosts::hang_up_starting() {
  waiting_.clear();
  for (const auto& connection : connections_)
    if (connection->starting()) connection->hang_up();
}

void RemoteHosts::hang_up() {
  waiting_.clear();
  for (const auto& connection : connections_) connection->hang_up();
}

bool RemoteHosts::all_ended() const {
  return waiting_.empty() && std::ranges::all_of(connections_, [](const auto& one) { return one->ended(); });
}

bool RemoteHosts::runs_anywhere() const {
  return std::ranges::any_of(connections_, [](const auto& one) { return one->runs(); });
}

asio::awaitable<void> RemoteHosts::finish(JobEvents& events, Patience patience) {
  const auto workers_end = options_.shutdown_timeout + kEndPatience;
  const bool goes_on = patience == Patience::kWholeTraining;
  if (!goes_on) hang_up_starting();
  const auto hang_up_at =
      LoopClock::now() + (patience == Patience::kNone ? std::chrono::milliseconds(0) : workers_end);
  const auto kill_at = hang_up_at + workers_end;
  while (!all_ended()) {
    if (!goes_on && LoopClock::now() >= hang_up_at) hang_up();
    if ((!goes_on && LoopClock::now() >= kill_at) || events.end_signals() > 2) {
      std::vector<std::string> names;
      for (const auto& connection : connections_)
        if (!connection->ended()) names.push_back(connection->name());
      log_warning("not waiting any longer for the ddprun on " + one_of(names, "and"));
      for (const auto& connection : connections_) connection->kill();
      co_return;
    }
    look_.expires_after(kEndLook);
    boost::system::error_code ignored;
    co_await look_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

std::string RemoteHosts::describe(const Options& options, const std::vector<std::string>& environment) {
  std::vector<std::string> names;
  for (const std::string& variable : environment_for_others(environment, options.hosts.env))
    names.push_back(printable(variable.substr(0, variable.find('='))));
  std::string text;
  for (std::size_t i = 0; i < options.hosts.all.size(); ++i) {
    const Host& host = options.hosts.all[i];
    text += "host " + host.name();
    if (i == options.hosts.own) {
      text += ": this ddprun\n";
      continue;
    }
    text += "\n  runs: " + shown_command(ssh_command(options.hosts, host)) + "\n";
    text += "  folder: " + printable(current_folder().string()) + "\n";
    text += "  ddprun's words: " + shown_command(options.hosts.words) + "\n";
    text += "  variables: " + (names.empty() ? "none" : joined(names, ", ")) + "\n";
  }
  return text;
}

Starter::Starter(asio::io_context& io, int channel, const Options& options)
    : channel_(io, channel), options_(options) {
  channel_.non_blocking(true);
  watch();
}

void Starter::watch() {
  channel_.async_wait(channel_.wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    char bytes[256];
    const ssize_t n = ::read(channel_.native_handle(), bytes, sizeof bytes);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return end();
    for (ssize_t i = 0; i < n; ++i)
      if (bytes[i] == '\n')
        take(std::exchange(line_, {}));
      else if (line_.size() < sizeof bytes)
        line_ += bytes[i];
    watch();
  });
}

/// A signal reaches this ddprun as if somebody here had sent it.
void Starter::take(const std::string& line) {
  constexpr std::string_view kWord = "signal ";
  if (!line.starts_with(kWord)) return;
  const auto signal = parse_integer(line.substr(kWord.size()), 1, SIGRTMAX);
  const auto is_one = [&](const std::vector<int>& list) {
    return signal && std::ranges::find(list, *signal) != list.end();
  };
  ending_ = ending_ || is_one(options_.ending_signals);
  if (is_one(options_.ending_signals) || is_one(options_.forwarded_signals)) ::kill(::getpid(), *signal);
}

/// ssh, or the ddprun that has started it, is gone.
void Starter::end() {
  const auto& ending = options_.ending_signals;
  const bool terminates = std::ranges::find(ending, SIGTERM) != ending.end();
  // Where no signal ends the job, the guard does.
  const int signal = terminates ? SIGTERM : ending.empty() ? SIGKILL : ending.front();
  if (ending_) return;  // a second one would kill workers that are saving
  lost_ = true;
  log_warning("the connection to the ddprun that started this one has ended: ending the workers");
  ::kill(::getpid(), signal);
}

}  // namespace ddprun::launcher
