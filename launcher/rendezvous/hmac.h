#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

inline constexpr std::size_t kMacSize = 32;  ///< bytes of an HMAC-SHA256
inline const std::vector<const char*> kLibcryptoNames{"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};

/// HMAC-SHA256 (RFC 2104) by libcrypto, which is loaded at the first call (docs/decisions/0009-libcrypto.md).
///
/// key, message   any bytes
/// returns        kMacSize bytes
/// throws         LaunchError(kOwnFailure) as require_libcrypto()
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Takes the same time wherever texts of one size differ, so that nobody can guess a MAC byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// For who wants to know at once that there is a libcrypto, and not when something is to be signed.
///
/// names     of the library, for tests; the first that is there counts
/// throws    LaunchError(kOwnFailure) saying what to install, if there is none or it is another library
void require_libcrypto(const std::vector<const char*>& names = kLibcryptoNames);

}  // namespace ddprun::launcher
