#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/recovery.h>
#include "launcher/events/clock.h"
#include "launcher/events/restart_policy.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// A pipe from each worker. Its writer never waits for ddprun: if the pipe is full, it drops its data.
///
/// Pipes are read at most ten times a second, so that short steps do not keep ddprun busy; bytes may seem up
/// to 0.1 s younger than they are.
class WorkerPipes {
 public:
  using OnBytes = std::function<void(std::size_t index, std::string_view bytes)>;

  WorkerPipes(boost::asio::io_context& io, OnBytes on_bytes);
  ~WorkerPipes();
  WorkerPipes(const WorkerPipes&) = delete;
  WorkerPipes& operator=(const WorkerPipes&) = delete;

  /// Opens a worker's pipe, and closes that of an earlier worker in its place. returns its writing end, to
  /// close once the worker has inherited it. throws std::system_error
  UniqueFd open(std::size_t index);

  /// Reads what the workers have written so far.
  void read_now();

 private:
  struct Pipe;
  static void close(Pipe& pipe);
  static void watch(const std::shared_ptr<Pipe>& pipe);
  static void take_bytes(const std::shared_ptr<Pipe>& pipe);

  boost::asio::io_context& io_;
  std::shared_ptr<const OnBytes> on_bytes_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

/// Heartbeats of the workers. Each inherits the writing end of a pipe as DDPRUN_HEARTBEAT_FD; every byte
/// written there is a beat.
class Heartbeats {
 public:
  using Clock = LoopClock;

  explicit Heartbeats(boost::asio::io_context& io)
      : pipes_(io, [this](std::size_t index, std::string_view) { last_beats_[index] = Clock::now(); }) {}

  /// Opens a worker's pipe, like WorkerPipes::open.
  UniqueFd open(std::size_t index) {
    if (last_beats_.size() <= index) last_beats_.resize(index + 1);
    last_beats_[index].reset();
    return pipes_.open(index);
  }

  /// When the worker's latest beat was seen; nullopt: never.
  std::optional<Clock::time_point> last_beat(std::size_t index) const { return last_beats_.at(index); }

 private:
  WorkerPipes pipes_;
  std::vector<std::optional<Clock::time_point>> last_beats_;
};

/// The sockets through which ddprun announces new rounds to workers (--recover=rank): DDPRUN_ROUND_FD.
class RoundChannels {
 public:
  /// Opens a worker's channel, and closes that of an earlier worker in its place. returns the worker's end,
  /// to close once it has inherited it. throws std::system_error
  UniqueFd open(std::size_t index) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
    if (channels_.size() <= index) channels_.resize(index + 1);
    abilities(index);  // reported by the earlier worker
    channels_[index].ours.reset(ends[0]);
    channels_[index].is_silent = true;
    return UniqueFd(ends[1]);
  }

  /// What this worker, or an earlier one in its place, last reported, if anything. Nothing without a channel:
  /// another node may have --recover=rank where this one has not.
  std::optional<Abilities> abilities(std::size_t index) {
    if (index >= channels_.size()) return std::nullopt;
    Channel& channel = channels_[index];
    if (channel.ours)
      if (const auto news = receive_abilities(channel.ours.get()))
        channel.said = news, channel.is_silent = false;
    return channel.said;
  }

  /// Whether this worker itself has reported.
  bool announced(std::size_t index) { return abilities(index) && !channels_[index].is_silent; }

  /// store_fd  for rank 0, to listen on; -1: none
  void tell(std::size_t index, const RoundNotice& notice, int store_fd) {
    send_notice(channels_.at(index).ours.get(), notice, store_fd);  // a missing worker is noticed anyway
  }

 private:
  struct Channel {
    UniqueFd ours;
    std::optional<Abilities> said;
    bool is_silent = true;  ///< the one that is there now
  };
  std::vector<Channel> channels_;
};

/// The server of PyTorch's file timers (torch.distributed.elastic.timer.FileTimerClient). Workers write lines
/// of JSON into a named pipe: a process, a scope, when its timer expires, and the signal that the process
/// gets then. A negative time removes the timer.
class FileTimers {
 public:
  struct Expired {
    pid_t pid = 0;
    std::string scope;
    int signal = 0;
  };
  using OnExpired = std::function<void(const Expired& expired)>;

  /// Replaces a pipe left by an earlier job of this user. throws IoError
  static UniqueFd make_pipe(const std::filesystem::path& path);

  FileTimers(boost::asio::io_context& io, UniqueFd pipe, OnExpired on_expired);
  ~FileTimers();
  FileTimers(const FileTimers&) = delete;
  FileTimers& operator=(const FileTimers&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with handlers that may still be queued at destruction
};

using HangClock = std::chrono::steady_clock;

/// A worker's signs of life.
struct SignsOfLife {
  bool running = true;
  std::optional<HangClock::time_point> last_output;  ///< nullopt: none yet
  std::optional<HangClock::time_point> last_beat;    ///< nullopt: it never sent a heartbeat
};

/// When to look again: no worker can count as hung earlier. max() if no worker is running, or all depends on
/// news from the other nodes.
struct LookAgain {
  HangClock::time_point at;
};

/// Which workers hang?
///
/// A worker that ever sent a heartbeat hangs when its latest beat or output is as old as the timeout. Workers
/// that never sent one are judged together over the job, since in many programs only rank 0 prints: all
/// running ones hang when no worker on any node has shown a sign of life for the timeout. A worker that has
/// ended cannot hang, but its signs count for the others.
///
/// since  when the workers started, or ddprun continued after a stop; counts as a sign of life
/// job    the signs on all nodes: what is not known yet makes nobody hang. On one node alone, known until now
std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, HangClock::time_point since,
                                         std::chrono::milliseconds timeout, HangClock::time_point now,
                                         const KnownSigns& job);

/// The last sign of life of any of these workers.
HangClock::time_point latest_sign(const std::vector<SignsOfLife>& workers, HangClock::time_point since);

}  // namespace ddprun::launcher
