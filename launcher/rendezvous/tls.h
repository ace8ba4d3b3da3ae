#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddprun::launcher {

/// PEM files for TLS; empty: the system's authorities, no certificate of our own.
struct TlsFiles {
  std::string authorities, certificate, key;
};

/// The other side is not trusted, a file cannot be used, or there is no libssl.
struct TlsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The client's side of a TLS connection, without the connection: bytes go in and come out. OpenSSL's libssl
/// is loaded at the first one, like libcrypto (docs/decisions/0009-libcrypto.md).
class TlsSession {
 public:
  /// host    that the server's certificate must name
  /// throws  TlsError
  TlsSession(const TlsFiles& files, const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Bytes that came from the server; empty: its end.
  void feed(std::string_view bytes);
  /// Bytes to send to it.
  std::string take_output();

  /// Goes on with the handshake; true once it is done. throws TlsError, as for a certificate that
  /// is not trusted
  bool shake_hands();
  void write(std::string_view text);
  /// What the server has said since the last call; empty: nothing yet. throws TlsError
  std::string read();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddprun::launcher
