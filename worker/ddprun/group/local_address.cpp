#include <ddprun/group/local_address.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::ddp {
namespace {

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

std::string to_text(const Address& address) {
  char text[NI_MAXHOST];
  const int error =
      ::getnameinfo(address.generic(), address.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  ensure(error == 0, "an address can be written as a number");
  return text;
}

/// The addresses of a name or address, in the order to try them.
std::vector<Address> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  // Not port 0, which connect() rejects on some systems; nothing is sent there.
  const int error = ::getaddrinfo(host.c_str(), "1", &hints, &list);
  if (error != 0)
    throw UsageError("MASTER_ADDR: expected the address or name of rank 0's host, got '" + host +
                     "': " + (error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<Address> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address address;
    address.size = entry->ai_addrlen;
    std::memcpy(&address.bytes, entry->ai_addr, entry->ai_addrlen);
    found.push_back(address);
  }
  std::stable_sort(found.begin(), found.end(), [](const Address& a, const Address& b) {
    const auto place = [](const Address& address) {
      return std::tuple(is_loopback(to_text(address)), address.bytes.ss_family != AF_INET);
    };
    return place(a) < place(b);
  });
  return found;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

std::string local_address_towards(const std::string& master_addr) {
  std::string tried;
  for (const Address& target : addresses_of(master_addr)) {
    const UniqueFd fd(::socket(target.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Address source;  // that the kernel would send from
    if (fd && ::connect(fd.get(), target.generic(), target.size) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&source.bytes), &source.size) == 0)
      return to_text(source);
    const int error = errno;
    tried += (tried.empty() ? "" : ", ") + to_text(target) + ": " + std::strerror(error);
  }
  throw UsageError("MASTER_ADDR: this host has no route to '" + master_addr + "' (" + tried +
                   "); GLOO_SOCKET_IFNAME can name a network interface");
}

}  // namespace ddprun::ddp
