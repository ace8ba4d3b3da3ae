#pragma once

#include <time.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "tests/launcher/rendezvous/cut_network.h"
#include "tests/simulation/event.h"

struct sockaddr;

namespace ddprun::test {

/// Hosts with programs of the real code, in one process and one thread. What a program asks the kernel for by
/// socket(), connect() and timerfd_settime() comes here while one of these lives: each host has its own
/// clock, and a connection is two socket pairs, between which the bytes travel as slowly as the network says.
/// A program that is paused hears nothing, but its kernel accepts connections. Time passes from one event to
/// the next.
class SimulatedHosts {
 public:
  using Clock = launcher::LoopClock;
  using Time = Clock::time_point;
  using Host = std::size_t;
  using Life = std::pair<Host, int>;  ///< of a host's programs, one after the other
  using Milliseconds = std::chrono::milliseconds;

  /// slowest  of packets
  SimulatedHosts(std::mt19937& random, std::size_t hosts, Milliseconds slowest);
  ~SimulatedHosts();
  SimulatedHosts(const SimulatedHosts&) = delete;
  SimulatedHosts& operator=(const SimulatedHosts&) = delete;

  std::size_t count() const { return hosts_.size(); }
  void set_speed(Host host, double speed) { hosts_[host].speed = speed; }
  CutNetwork& network() { return network_; }

  /// Handles the next event. False: there is none.
  bool step();
  Time now() const { return now_; }
  Time clock(Host host) const;  ///< as that host has it
  void after(Clock::duration delay, std::function<void()> action);
  /// What the host's program does then by its clock; later if it is paused, never if it has ended.
  void on(Host host, Milliseconds delay, std::function<void()> action);

  /// What follows, before the next event, is done by this host's program.
  void make_current(Host host) { current_ = host; }
  /// A program begins: this is its loop, and act() what it does after each turn of that.
  void begin(Host host, boost::asio::io_context& io, std::function<void()> act);
  /// It ends: destroy() what it consists of. Without power the host says nothing more, and is on again when
  /// the next one begins.
  void end(Host host, bool with_power, const std::function<void()>& destroy);
  void pause(Host host, Clock::duration time) { hosts_[host].paused_until = now_ + time; }
  /// A listening socket of the host's program.
  UniqueFd listen(Host host);

  Life life_of(Host host) const { return {host, hosts_[host].life}; }
  Time paused_until(Host host) const { return hosts_[host].paused_until; }
  bool reach(Host a, Host b) const { return carries(a, b) && carries(b, a); }
  /// Whom the host has connected to last.
  Life connected_to(Host host) const { return hosts_[host].connected_to; }

  static constexpr const char* kNetwork = "10.0.0.";  ///< the host's number follows

  // The kernel of the program that runs.
  int open_socket(int type);
  int connect_socket(int fd, const sockaddr* address);
  int set_timer(int fd, int flags, const itimerspec& value);

 private:
  struct Machine {
    double speed = 1;
    bool powered = true;
    int life = 0;
    boost::asio::io_context* io = nullptr;  ///< of its program
    std::function<void()> act;
    Time paused_until, due = Time::max(), planned = Time::max();
    int timer = -1;
    std::string address;  ///< at which it listens
    Life connected_to;
  };
  /// A connection. Side 0 has begun it.
  struct Wire {
    std::array<Life, 2> of;
    std::array<UniqueFd, 2> ends;                        ///< the network's
    std::array<std::deque<std::string>, 2> under_way{};  ///< to that side; empty: the connection's end
    std::array<bool, 2> unplugged{};                     ///< without power since
  };
  bool carries(Host from, Host to) const;
  Milliseconds delay() { return Milliseconds(random_() % static_cast<unsigned>(slowest_.count() + 1)); }
  void act(Life life, const std::function<void()>& action);
  void wake(Host host);
  void plan(Host host);
  void collect(Host host);
  void deliver(std::size_t wire, std::size_t side);

  std::mt19937& random_;
  Milliseconds slowest_;
  CutNetwork network_;
  Time start_ = Time() + std::chrono::hours(1), now_ = start_;
  std::vector<Machine> hosts_;
  std::map<int, UniqueFd> unconnected_;  ///< the network's ends of programs' sockets
  std::deque<Wire> wires_;
  std::priority_queue<Event> events_;
  std::size_t next_order_ = 0;
  Host current_ = 0;  ///< whose program runs
};

}  // namespace ddprun::test
