#include "tests/network/slow_hub.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Frame {
  Clock::time_point due;
  std::size_t from;  ///< port
  std::vector<char> bytes;
};

[[noreturn]] void pass_frames(const std::vector<UniqueFd>& ports, const Impairment& impairment) {
  std::mt19937 random(1);
  std::bernoulli_distribution lost(impairment.loss);
  std::deque<Frame> under_way;  // in the order of coming, which is that of leaving
  std::vector<pollfd> readable;
  for (const UniqueFd& port : ports) readable.push_back({port.get(), POLLIN, 0});
  std::vector<char> buffer(65536);
  for (;;) {
    int wait_ms = -1;
    if (!under_way.empty()) {
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(under_way.front().due - Clock::now());
      wait_ms = static_cast<int>(std::max(wait.count(), std::chrono::milliseconds::rep{0}));
    }
    ::poll(readable.data(), readable.size(), wait_ms);
    for (std::size_t from = 0; from < ports.size(); ++from) {
      const ssize_t size = ::read(ports[from].get(), buffer.data(), buffer.size());
      if (size > 0 && !lost(random))
        under_way.push_back({Clock::now() + impairment.delay, from, {buffer.data(), buffer.data() + size}});
    }
    for (; !under_way.empty() && under_way.front().due <= Clock::now(); under_way.pop_front())
      for (std::size_t to = 0; to < ports.size(); ++to) {
        const auto& bytes = under_way.front().bytes;
        // A full or closed port loses the frame, as a cable would.
        if (to != under_way.front().from) [[maybe_unused]]
          const ssize_t n = ::write(ports[to].get(), bytes.data(), bytes.size());
      }
  }
}

}  // namespace

UniqueFd SlowHub::make_port(const std::string& interface) {
  UniqueFd port(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!port || ::ioctl(port.get(), TUNSETIFF, &request) != 0)
    skip(std::string("no TAP interface can be made here (/dev/net/tun): ") + std::strerror(errno));
  return port;
}

SlowHub::SlowHub(std::vector<UniqueFd> ports, const Impairment& impairment) : ports_(std::move(ports)) {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  pass_frames(ports_, impairment);
}

SlowHub::~SlowHub() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace ddprun::test
