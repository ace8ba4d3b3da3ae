#include "launcher/rendezvous/tls.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>

#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

// OpenSSL's types and numbers, the same in 1.1 and 3.
using Object = void*;
constexpr int kVerifyPeer = 1, kPem = 1, kSetHostName = 55, kHostNameType = 0, kSetMinVersion = 123;
constexpr int kTls12 = 0x0303;
constexpr int kWantRead = 2, kZeroReturn = 6;

/// The functions of libssl, and those of libcrypto that go with it. Never unloaded: they have exit handlers.
struct Libssl {
  Libssl() {
    std::string problems;
    for (const char* name : {"libssl.so.3", "libssl.so.1.1", "libssl.so"}) {
      library_ = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (library_ != nullptr) break;
      problems += (problems.empty() ? "" : "; ") + std::string(::dlerror());
    }
    if (library_ == nullptr) throw TlsError("TLS needs OpenSSL's libssl (Debian: libssl3): " + problems);
    load(client_method, "TLS_client_method");
    load(new_context, "SSL_CTX_new");
    load(free_context, "SSL_CTX_free");
    load(control_context, "SSL_CTX_ctrl");
    load(set_verify, "SSL_CTX_set_verify");
    load(load_authorities, "SSL_CTX_load_verify_locations");
    load(use_system_authorities, "SSL_CTX_set_default_verify_paths");
    load(use_certificate, "SSL_CTX_use_certificate_chain_file");
    load(use_key, "SSL_CTX_use_PrivateKey_file");
    load(check_key, "SSL_CTX_check_private_key");
    load(set_passphrase, "SSL_CTX_set_default_passwd_cb");
    load(new_session, "SSL_new");
    load(free_session, "SSL_free");
    load(set_streams, "SSL_set_bio");
    load(set_host, "SSL_set1_host");
    load(control, "SSL_ctrl");
    load(parameters, "SSL_get0_param");
    load(set_address, "X509_VERIFY_PARAM_set1_ip_asc");
    load(connect, "SSL_connect");
    load(read, "SSL_read");
    load(write, "SSL_write");
    load(error_of, "SSL_get_error");
    load(verify_result, "SSL_get_verify_result");
    load(verify_text, "X509_verify_cert_error_string");
    load(new_stream, "BIO_new");
    load(memory, "BIO_s_mem");
    load(read_stream, "BIO_read");
    load(write_stream, "BIO_write");
    load(next_error, "ERR_get_error");
    load(error_text, "ERR_error_string_n");
  }

  Object (*client_method)();
  Object (*new_context)(Object);
  void (*free_context)(Object);
  long (*control_context)(Object, int, long, void*);
  void (*set_verify)(Object, int, void*);
  int (*load_authorities)(Object, const char*, const char*);
  int (*use_system_authorities)(Object);
  int (*use_certificate)(Object, const char*);
  int (*use_key)(Object, const char*, int);
  int (*check_key)(Object);
  void (*set_passphrase)(Object, int (*)(char*, int, int, void*));
  Object (*new_session)(Object);
  void (*free_session)(Object);
  void (*set_streams)(Object, Object, Object);
  int (*set_host)(Object, const char*);
  long (*control)(Object, int, long, void*);
  Object (*parameters)(Object);
  int (*set_address)(Object, const char*);
  int (*connect)(Object);
  int (*read)(Object, void*, int);
  int (*write)(Object, const void*, int);
  int (*error_of)(Object, int);
  long (*verify_result)(Object);
  const char* (*verify_text)(long);
  Object (*new_stream)(Object);
  Object (*memory)();
  int (*read_stream)(Object, void*, int);
  int (*write_stream)(Object, const void*, int);
  unsigned long (*next_error)();
  void (*error_text)(unsigned long, char*, std::size_t);

 private:
  template <typename Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_, name));
    if (function == nullptr)
      throw TlsError(std::string("TLS needs OpenSSL 1.1 or 3 (Debian: libssl3): the libssl found has no ") +
                     name);
  }
  void* library_ = nullptr;
};

const Libssl& libssl() {
  static const Libssl loaded;
  return loaded;
}

/// OpenSSL's reason for the last failure; forgets all of them.
std::string reason() {
  unsigned long first = 0;
  while (const unsigned long error = libssl().next_error())
    if (first == 0) first = error;
  std::array<char, 256> text{};
  libssl().error_text(first, text.data(), text.size());
  const std::string whole = text.data();  // error:NUMBER:LIBRARY:FUNCTION:REASON
  return first == 0 ? "the connection ended" : printable(whole.substr(whole.rfind(':') + 1));
}

bool is_address(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

struct TlsSession::State {
  ~State() {
    libssl().free_session(session);  // and its streams
    libssl().free_context(context);
  }
  Object context = nullptr, session = nullptr;
  Object in = nullptr, out = nullptr;  ///< the session's
  bool ended = false;                  ///< by the server
};

TlsSession::TlsSession(const TlsFiles& files, const std::string& host) {
  const Libssl& ssl = libssl();  // before there is a State, whose end needs it
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.context = ssl.new_context(ssl.client_method());
  const auto check = [&](bool ok, const std::string& what) {
    if (!ok) throw TlsError(what + ": " + reason());
  };
  check(state.context != nullptr, "cannot prepare TLS");
  ssl.control_context(state.context, kSetMinVersion, kTls12, nullptr);
  ssl.set_verify(state.context, kVerifyPeer, nullptr);
  ssl.set_passphrase(state.context, [](char*, int, int, void*) { return -1; });  // else it asks the terminal
  if (files.authorities.empty())
    ssl.use_system_authorities(state.context);
  else
    check(ssl.load_authorities(state.context, files.authorities.c_str(), nullptr) == 1,
          "cannot use the certificate authorities in " + single_quoted(files.authorities));
  if (!files.certificate.empty()) {
    const std::string& key = files.key.empty() ? files.certificate : files.key;
    check(ssl.use_certificate(state.context, files.certificate.c_str()) == 1,
          "cannot use the certificate " + single_quoted(files.certificate));
    check(ssl.use_key(state.context, key.c_str(), kPem) == 1 && ssl.check_key(state.context) == 1,
          "cannot use the key " + single_quoted(key));
  }
  state.session = ssl.new_session(state.context);
  check(state.session != nullptr, "cannot prepare TLS");
  state.in = ssl.new_stream(ssl.memory());
  state.out = ssl.new_stream(ssl.memory());
  ssl.set_streams(state.session, state.in, state.out);
  std::string name = host;
  const bool address = is_address(host);
  if (!address) ssl.control(state.session, kSetHostName, kHostNameType, name.data());
  check((address ? ssl.set_address(ssl.parameters(state.session), host.c_str())
                 : ssl.set_host(state.session, host.c_str())) == 1,
        "cannot check certificates for " + single_quoted(host));
}

TlsSession::~TlsSession() = default;

void TlsSession::feed(std::string_view bytes) {
  state_->ended = state_->ended || bytes.empty();
  if (!bytes.empty()) libssl().write_stream(state_->in, bytes.data(), static_cast<int>(bytes.size()));
}

std::string TlsSession::take_output() {
  std::string all;
  std::array<char, 4096> bytes;
  for (int size; (size = libssl().read_stream(state_->out, bytes.data(), int{bytes.size()})) > 0;)
    all.append(bytes.data(), static_cast<std::size_t>(size));
  return all;
}

bool TlsSession::shake_hands() {
  const int result = libssl().connect(state_->session);
  if (result == 1) return true;
  if (libssl().error_of(state_->session, result) == kWantRead && !state_->ended) return false;
  const long verified = libssl().verify_result(state_->session);
  throw TlsError(verified != 0
                     ? std::string("its certificate is not trusted: ") + libssl().verify_text(verified)
                     : "the TLS handshake failed: " + reason());
}

void TlsSession::write(std::string_view text) {
  libssl().write(state_->session, text.data(), static_cast<int>(text.size()));
}

std::string TlsSession::read() {
  std::string all;
  std::array<char, 16384> bytes;
  for (;;) {
    const int size = libssl().read(state_->session, bytes.data(), int{bytes.size()});
    if (size > 0) {
      all.append(bytes.data(), static_cast<std::size_t>(size));
      continue;
    }
    const int error = libssl().error_of(state_->session, size);
    if (!all.empty() || error == kWantRead || error == kZeroReturn) return all;
    throw TlsError("TLS failed: " + reason());
  }
}

}  // namespace ddprun::launcher
