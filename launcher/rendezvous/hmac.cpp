#include "launcher/rendezvous/hmac.h"

#include <dlfcn.h>

#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

// The part of OpenSSL's headers that we use, so that building does not need them. The ABI is the same from
// 1.0 to 3.
using Digest = struct evp_md_st;
using Sha256Function = const Digest*();
using HmacFunction = unsigned char*(const Digest*, const void* key, int key_size,
                                    const unsigned char* message, std::size_t message_size,
                                    unsigned char* mac, unsigned* mac_size);
using CompareFunction = int(const void*, const void*, std::size_t);

/// The functions of libcrypto, which is never unloaded because it has exit handlers.
struct Libcrypto {
  explicit Libcrypto(const std::vector<const char*>& names) {
    void* library = nullptr;
    std::string problems;
    for (const char* name : names) {
      library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (library != nullptr) break;
      problems += (problems.empty() ? "" : "; ") + std::string(::dlerror());
    }
    if (library == nullptr) fail("(Debian: libssl3): " + problems);
    load(library, sha256, "EVP_sha256");
    load(library, hmac, "HMAC");
    load(library, compare, "CRYPTO_memcmp");
  }

  Sha256Function* sha256 = nullptr;
  HmacFunction* hmac = nullptr;
  CompareFunction* compare = nullptr;

 private:
  [[noreturn]] static void fail(const std::string& what) {
    throw LaunchError(LaunchError::kOwnFailure, "a token needs OpenSSL's libcrypto " + what);
  }

  template <typename Function>
  static void load(void* library, Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr) fail(std::string("1.1 or 3 (Debian: libssl3): the one found has no ") + name);
  }
};

const Libcrypto& libcrypto() {
  static const Libcrypto loaded(kLibcryptoNames);
  return loaded;
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view message) {
  const Libcrypto& crypto = libcrypto();
  const char* key_bytes = key.empty() ? "" : key.data();  // null would mean "no key"
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  std::string mac(kMacSize, '\0');
  auto* out = reinterpret_cast<unsigned char*>(mac.data());
  if (crypto.hmac(crypto.sha256(), key_bytes, static_cast<int>(key.size()), bytes, message.size(), out,
                  nullptr) == nullptr)
    throw LaunchError(LaunchError::kOwnFailure, "OpenSSL's libcrypto cannot compute an HMAC-SHA256");
  return mac;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && libcrypto().compare(a.data(), b.data(), a.size()) == 0;
}

void require_libcrypto(const std::vector<const char*>& names) { Libcrypto{names}; }

}  // namespace ddprun::launcher
