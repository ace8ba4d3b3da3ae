#include <ddprun/group/late_notice.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include <ddprun/common/logging.h>

namespace ddprun::ddp {

LateNotice::LateNotice(std::chrono::milliseconds expected, std::string line)
    : thread_([expected, line = std::move(line)](const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any().wait_for(lock, stop, expected, [] { return false; });
        if (!stop.stop_requested()) log_info(line);
      }) {}

}  // namespace ddprun::ddp
