#include "launcher/rendezvous/lookup.h"

#include <netdb.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "launcher/events/threads.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

/// The addresses of a host, in the system's order. throws std::runtime_error with the system's reason
AddressBook::Addresses look_up(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (error != 0) throw std::runtime_error(std::string("cannot look up the host: ") + ::gai_strerror(error));
  AddressBook::Addresses found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    tcp::endpoint address;
    if (entry->ai_addrlen > address.capacity()) continue;
    address.resize(entry->ai_addrlen);
    std::memcpy(address.data(), entry->ai_addr, entry->ai_addrlen);
    found.push_back(address);
  }
  ::freeaddrinfo(list);
  return found;
}

}  // namespace

struct AddressBook::Entry {
  std::mutex mutex;
  Addresses addresses;
};

asio::awaitable<AddressBook::Addresses> AddressBook::resolve(
    Endpoint endpoint, std::optional<std::chrono::steady_clock::time_point> deadline) {
  boost::system::error_code is_name;
  const auto address = asio::ip::make_address(endpoint.host, is_name);
  if (!is_name) co_return Addresses{tcp::endpoint(address, static_cast<unsigned short>(endpoint.port))};
  const auto found = entries_.try_emplace(to_string(endpoint), std::make_shared<Entry>()).first->second;
  const std::function<void()> work = [found, endpoint] {  // named: GCC 12
    auto addresses = look_up(endpoint);
    const std::lock_guard lock(found->mutex);
    found->addresses = std::move(addresses);
  };
  const AsideEnd end = co_await run_aside(work, deadline);
  const std::lock_guard lock(found->mutex);
  if (end == AsideEnd::kLate && found->addresses.empty())
    throw std::runtime_error("cannot look up the host: the name server does not answer");
  co_return found->addresses;
}

}  // namespace ddprun::launcher
