#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

inline constexpr std::size_t kMacSize = 32;  ///< bytes of an HMAC-SHA256
inline const std::vector<const char*> kLibcryptoNames{"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};

/// HMAC-SHA256 (RFC 2104) by libcrypto, loaded at the first call (docs/decisions/0009-libcrypto.md).
///
/// returns        kMacSize bytes
/// throws         LaunchError(kOwnFailure) as require_libcrypto()
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Takes the same time wherever the texts differ, so a MAC cannot be guessed byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Checks early that libcrypto can be loaded.
///
/// names     to try in order, for tests
/// throws    LaunchError(kOwnFailure) saying what to install, if it is missing or unsuitable
void require_libcrypto(const std::vector<const char*>& names = kLibcryptoNames);

}  // namespace ddprun::launcher
