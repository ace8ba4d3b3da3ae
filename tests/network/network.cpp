#include "tests/network/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

/// Runs the function in its own thread, whose namespaces may change.
void run_apart(const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

void check(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

Network::Namespace Network::make_namespace() {
  Namespace space;
  int error = 0;
  run_apart([&] {
    if (::unshare(CLONE_NEWNET) != 0) {
      error = errno;
      return;
    }
    space.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  });
  if (error != 0) skip(std::string("network namespaces cannot be made here: ") + std::strerror(error));
  return space;
}

std::string Network::path_of(const Namespace& space) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(space.get());
}

/// `ip`, given one command a line, in the namespace.
void Network::ip(const Namespace& space, const std::string& commands) {
  Command command{{"ip", "-batch", "-"}};
  command.stdin_text = commands + "\n";
  command.in_child = [fd = space.get()] {
    if (::setns(fd, CLONE_NEWNET) != 0) ::_exit(122);
  };
  Child child(command);
  const auto status = child.wait();
  if (status == ExitStatus::exited(127)) skip("ip (package iproute2) is not installed");
  if (status != ExitStatus::exited(0)) throw std::runtime_error("ip: " + child.err() + "of\n" + commands);
}

Network::Network(int hosts) : Network(hosts, Options()) {}

Network::Network(int hosts, const Options& options) : folder_("ddprun_network"), bridge_(make_namespace()) {
  write_file_atomic(folder_.path() / "resolv.conf", "");
  set_names("");
  for (int host = 0; host < hosts; ++host) hosts_.push_back(make_namespace());
  if (options.slow) {
    std::vector<UniqueFd> ports(static_cast<std::size_t>(hosts));
    for (int host = 0; host < hosts; ++host)
      run_on(host, [&] { ports[static_cast<std::size_t>(host)] = SlowHub::make_port("eth0"); });
    hub_.emplace(std::move(ports), *options.slow);
  } else {
    std::string commands = "link add br0 type bridge mcast_snooping 0\nlink set br0 up";
    for (int host = 0; host < hosts; ++host) {
      const std::string port = "p" + std::to_string(host);
      commands += "\nlink add " + port + " type veth peer name eth0 netns " +
                  path_of(hosts_[static_cast<std::size_t>(host)]) + "\nlink set " + port + " master br0 up";
    }
    ip(bridge_, commands);
  }
  for (int host = 0; host < hosts; ++host)
    ip(hosts_[static_cast<std::size_t>(host)],
       "link set lo up" + (options.ipv4 ? "\naddr add " + ipv4(host) + "/24 dev eth0" : "") + "\naddr add " +
           ipv6(host) + "/64 dev eth0 nodad\nlink set eth0 up");
}

/// The calling thread becomes one of the host's.
void Network::enter(int host) const {
  check(::setns(hosts_.at(static_cast<std::size_t>(host)).get(), CLONE_NEWNET), "setns");
  check(::unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare");
  check(::sethostname(name(host).data(), name(host).size()), "sethostname");
  check(::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "mount /");
  for (const std::string file : {"hosts", "resolv.conf"})
    if (std::filesystem::exists("/etc/" + file))
      check(::mount((folder_.path() / file).c_str(), ("/etc/" + file).c_str(), nullptr, MS_BIND, nullptr),
            "mount in /etc");
}

Command Network::on(int host, Command command) const {
  command.in_child = [this, host, more = command.in_child] {
    try {
      enter(host);
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      ::_exit(122);
    }
    if (more) more();
  };
  return command;
}

void Network::run_on(int host, const std::function<void()>& body) const {
  run_apart([&] {
    enter(host);
    body();
  });
}

void Network::set_names(const std::string& lines) const {
  write_file_atomic(folder_.path() / "hosts", "127.0.0.1 localhost\n::1 localhost\n" + lines);
}

void Network::add_address(int host, const std::string& address) const {
  ip(hosts_.at(static_cast<std::size_t>(host)), "addr add " + address + "/24 dev eth0");
}

}  // namespace ddprun::test
