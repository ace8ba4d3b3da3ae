#include "launcher/host/host_name.h"

#include <unistd.h>

namespace ddprun::launcher {

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace ddprun::launcher
