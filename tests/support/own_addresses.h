#pragma once

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <memory>
#include <set>
#include <string>

#include <ddprun/common/errors.h>

namespace ddprun::test {

/// The numeric addresses of this host's interfaces that are up.
inline std::set<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  ensure(::getifaddrs(&list) == 0, "the interfaces can be listed");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::set<std::string> texts;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const int error = ::getnameinfo(entry->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    ensure(error == 0, "an address can be written as a number");
    texts.insert(text);
  }
  return texts;
}

}  // namespace ddprun::test
