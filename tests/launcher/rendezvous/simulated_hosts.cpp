#include "tests/launcher/rendezvous/simulated_hosts.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#include <cerrno>
#include <cmath>

#include "tests/simulation/broken_promise.h"

namespace {

thread_local ddprun::test::SimulatedHosts* the_hosts = nullptr;

template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int real_socket(int family, int type, int protocol) {
  static const auto function = real(&::socket, "socket");
  return function(family, type, protocol);
}

int real_connect(int fd, const sockaddr* address, socklen_t size) {
  static const auto function = real(&::connect, "connect");
  return function(fd, address, size);
}

int real_set_timer(int fd, int flags, const itimerspec& value) {
  static const auto function = real(&::timerfd_settime, "timerfd_settime");
  return function(fd, flags, &value, nullptr);
}

}  // namespace

// In the place of the C library's.

extern "C" int socket(int family, int type, int protocol) noexcept {
  const bool tcp = (family == AF_INET || family == AF_INET6) && (type & 0xf) == SOCK_STREAM;
  return the_hosts != nullptr && tcp ? the_hosts->open_socket(type) : real_socket(family, type, protocol);
}

extern "C" int connect(int fd, const sockaddr* address, socklen_t size) {
  if (the_hosts == nullptr || address->sa_family != AF_INET) return real_connect(fd, address, size);
  return the_hosts->connect_socket(fd, address);
}

extern "C" int timerfd_settime(int fd, int flags, const itimerspec* value, itimerspec* old) noexcept {
  if (the_hosts != nullptr) return the_hosts->set_timer(fd, flags, *value);
  static const auto function = real(&::timerfd_settime, "timerfd_settime");
  return function(fd, flags, value, old);
}

namespace ddprun::test {

SimulatedHosts::SimulatedHosts(std::mt19937& random, std::size_t hosts, Milliseconds slowest)
    : random_(random), slowest_(slowest), network_(random), hosts_(hosts) {
  the_hosts = this;
  Clock::source = [] { return the_hosts->clock(the_hosts->current_); };
}

SimulatedHosts::~SimulatedHosts() {
  the_hosts = nullptr;
  Clock::source = std::chrono::steady_clock::now;
}

bool SimulatedHosts::step() {
  if (events_.empty()) return false;
  const Event next = events_.top();
  events_.pop();
  now_ = next.time;
  next.action();
  return true;
}

SimulatedHosts::Time SimulatedHosts::clock(Host host) const {
  return start_ + std::chrono::duration_cast<Clock::duration>((now_ - start_) * hosts_[host].speed);
}

void SimulatedHosts::after(Clock::duration delay, std::function<void()> action) {
  events_.push({now_ + delay, next_order_++, std::move(action)});
}

void SimulatedHosts::on(Host host, Milliseconds delay, std::function<void()> action) {
  after(std::chrono::duration_cast<Clock::duration>(delay / hosts_[host].speed),
        [this, life = life_of(host), action = std::move(action)] { act(life, action); });
}

void SimulatedHosts::act(Life life, const std::function<void()>& action) {
  Machine& host = hosts_[life.first];
  if (host.io == nullptr || host.life != life.second) return;
  if (now_ < host.paused_until)
    return after(host.paused_until - now_, [this, life, action] { act(life, action); });
  current_ = life.first;
  action();
  wake(life.first);
}

void SimulatedHosts::begin(Host host, boost::asio::io_context& io, std::function<void()> act) {
  hosts_[host].powered = true;
  hosts_[host].io = &io;
  hosts_[host].act = std::move(act);
  wake(host);
}

void SimulatedHosts::end(Host host, bool with_power, const std::function<void()>& destroy) {
  current_ = host;
  for (Wire& wire : wires_)
    for (const std::size_t side : {0, 1})
      if (with_power && wire.of[side] == life_of(host)) wire.unplugged[side] = true, wire.ends[side].reset();
  Machine off;
  off.speed = hosts_[host].speed;
  off.life = hosts_[host].life + 1;
  off.powered = !with_power;
  hosts_[host].io = nullptr;
  destroy();
  collect(host);
  hosts_[host] = off;
}

UniqueFd SimulatedHosts::listen(Host host) {
  UniqueFd fd(real_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(sa_family_t);  // the kernel chooses a name
  promise(::bind(fd.get(), generic, size) == 0 && ::listen(fd.get(), 128) == 0, "no socket to listen at");
  size = sizeof address;
  ::getsockname(fd.get(), generic, &size);
  hosts_[host].address.assign(reinterpret_cast<const char*>(&address), size);
  return fd;
}

bool SimulatedHosts::carries(Host from, Host to) const {
  return hosts_[from].powered && hosts_[to].powered && network_.carries(from, to);
}

/// Lets the program of the host do what there is to do.
void SimulatedHosts::wake(Host host) {
  Machine& machine = hosts_[host];
  if (machine.io == nullptr) return;
  if (now_ < machine.paused_until) return after(machine.paused_until - now_, [this, host] { wake(host); });
  current_ = host;
  if (machine.due <= now_) {
    machine.due = Time::max();
    real_set_timer(machine.timer, TFD_TIMER_ABSTIME, {{}, {0, 1}});  // long ago
  }
  do {
    machine.act();
    machine.io->restart();
  } while (machine.io->poll() > 0);
  collect(host);
}

/// To wake it for its first timer.
void SimulatedHosts::plan(Host host) {
  Machine& machine = hosts_[host];
  if (machine.due >= machine.planned) return;
  machine.planned = machine.due;
  after(machine.due - now_, [this, life = life_of(host), at = machine.due] {
    Machine& then = hosts_[life.first];
    if (then.life != life.second || then.planned != at) return;
    then.planned = Time::max();
    if (then.due <= now_) return wake(life.first);
    plan(life.first);
  });
}

/// What the program has sent goes on its way.
void SimulatedHosts::collect(Host host) {
  for (std::size_t i = 0; i < wires_.size(); ++i)
    for (const std::size_t side : {0, 1}) {
      Wire& wire = wires_[i];
      if (wire.of[side] != life_of(host)) continue;
      while (wire.ends[side]) {
        std::array<char, 4096> bytes;
        const auto got = ::recv(wire.ends[side].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) wire.ends[side].reset();
        wire.under_way[1 - side].emplace_back(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
        after(delay(), [this, i, side] { deliver(i, 1 - side); });
      }
    }
}

/// The oldest of what is under way, once the network carries it.
void SimulatedHosts::deliver(std::size_t index, std::size_t side) {
  Wire& wire = wires_[index];
  const Host from = wire.of[1 - side].first, to = wire.of[side].first;
  if (!wire.ends[side] || wire.unplugged[1 - side]) return;
  if (!carries(from, to))
    return after(std::chrono::milliseconds(1) + delay(), [this, index, side] { deliver(index, side); });
  const std::string bytes = std::move(wire.under_way[side].front());
  wire.under_way[side].pop_front();
  if (bytes.empty()) {
    wire.ends[side].reset();
  } else {
    const auto sent = ::send(wire.ends[side].get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    promise(sent == static_cast<ssize_t>(bytes.size()) || errno == EPIPE || errno == ECONNRESET,
            "a socket of the simulation is full");
  }
  wake(to);
}

int SimulatedHosts::open_socket(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  unconnected_[ends[0]] = UniqueFd(ends[1]);
  return ends[0];
}

/// Where nobody answers, it takes bytes and says nothing, until the program's time limit for an answer.
int SimulatedHosts::connect_socket(int fd, const sockaddr* address) {
  const auto number = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) & 0xff;
  const Host to = number;
  Wire wire{{life_of(current_), life_of(to)}, {std::move(unconnected_[fd]), UniqueFd()}};
  if (reach(current_, to)) {
    const std::string& at = hosts_[to].address;
    UniqueFd end(real_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (at.empty() || real_connect(end.get(), reinterpret_cast<const sockaddr*>(at.data()), at.size()) != 0) {
      errno = ECONNREFUSED;
      return -1;
    }
    wire.ends[1] = std::move(end);
    after(delay(), [this, to] { wake(to); });
  }
  hosts_[current_].connected_to = life_of(to);
  wires_.push_back(std::move(wire));
  return 0;
}

int SimulatedHosts::set_timer(int fd, int flags, const itimerspec& value) {
  Machine& machine = hosts_[current_];
  const auto wait =
      std::chrono::seconds(value.it_value.tv_sec) + std::chrono::nanoseconds(value.it_value.tv_nsec);
  const bool at_once = (flags & TFD_TIMER_ABSTIME) != 0;
  machine.timer = fd;
  machine.due =
      at_once ? now_ : now_ + std::chrono::nanoseconds(std::llround(std::ceil(wait.count() / machine.speed)));
  plan(current_);
  return real_set_timer(fd, 0, {});
}

}  // namespace ddprun::test
