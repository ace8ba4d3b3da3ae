#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/lookup.h"
#include "launcher/rendezvous/tls.h"

namespace ddprun::launcher {

/// How to reach an etcd cluster.
struct EtcdSettings {
  std::vector<Endpoint> endpoints;
  std::optional<TlsFiles> tls;  ///< nullopt: plain HTTP
  std::string user, password;   ///< empty: none
  std::string prefix = "/ddprun";
  std::chrono::milliseconds timeout{5'000};  ///< for one request to one of the endpoints
};

/// "etcd at http://HOST:PORT", with all endpoints.
std::string describe(const EtcdSettings& settings);

/// A request to etcd failed. The text is one line, without the endpoint.
struct EtcdError : std::runtime_error {
  enum class Kind {
    kUnreachable,  ///< or it cannot answer now
    kLeaseGone,    ///< expired
    kWrong,        ///< a wrong password, no permission, not an etcd: trying again does not help
  };
  EtcdError(Kind kind, const std::string& reason) : std::runtime_error(reason), kind(kind) {}
  Kind kind;
};

/// A key of etcd as it was read.
struct EtcdValue {
  std::string text;
  std::int64_t revision = 0;  ///< of its last change; 0: the key does not exist
};

/// One change: of a key to a value that lives as long as the lease, or its end.
struct EtcdChange {
  std::string key;
  std::optional<std::string> text;  ///< nullopt: deletes the key
  std::int64_t lease = 0;
};

/// Talks to etcd (3.4 or later) through its JSON gateway: each request is one HTTP POST over a connection of
/// its own. Asks the endpoints in turn, beginning with the one that answered last. Every function throws
/// EtcdError, and returns on the event loop, which it never blocks. One request at a time.
class EtcdClient {
 public:
  EtcdClient(boost::asio::io_context& io, EtcdSettings settings);

  struct Snapshot {
    std::vector<EtcdValue> values;
    std::int64_t revision = 0;  ///< of etcd's contents, which grows with every change
  };
  /// The keys' values at one time, in their order.
  boost::asio::awaitable<Snapshot> read(std::vector<std::string> keys);

  /// Changes keys if other keys have these revisions (EtcdValue::revision). Returns the revision of the
  /// change; nullopt: they have others.
  boost::asio::awaitable<std::optional<std::int64_t>> commit(
      std::vector<std::pair<std::string, std::int64_t>> expected, std::vector<EtcdChange> changes);

  /// A lease that lives for this time after each renew().
  boost::asio::awaitable<std::int64_t> grant(std::chrono::seconds time);
  /// throws EtcdError(kLeaseGone) also if it is unknown
  boost::asio::awaitable<void> renew(std::int64_t lease);

  /// This host's address on the last connection; empty: there was none.
  const std::string& local_address() const { return local_address_; }
  const EtcdSettings& settings() const { return settings_; }

 private:
  struct Reply;

  using Reader = std::function<void(const nlohmann::json& reply)>;
  boost::asio::awaitable<void> call(const char* path, std::string body, Reader read);
  boost::asio::awaitable<nlohmann::json> call_as_user(Endpoint endpoint, const char* path, std::string body);
  boost::asio::awaitable<nlohmann::json> ask(Endpoint endpoint, const char* path, std::string body);
  boost::asio::awaitable<Reply> exchange(Endpoint endpoint, std::string request);

  boost::asio::io_context& io_;
  EtcdSettings settings_;
  AddressBook address_book_;
  std::size_t place_ = 0;  ///< of the endpoint to ask first
  std::string token_, local_address_;
};

}  // namespace ddprun::launcher
