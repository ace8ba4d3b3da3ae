#include <ddprun/flight/recorded_work.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <utility>

namespace ddprun::ddp {
namespace {

/// What it says, without c10's stack trace.
std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

std::exception_ptr explained(Watchdog& watchdog, FlightRecorder::Id id, const std::vector<int>& members,
                             const std::exception_ptr& cause) {
  const auto message = watchdog.explain(id, members, message_of(cause));
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

void Recording::keep_looking_at(FlightRecorder::Id id, const c10::intrusive_ptr<c10d::Work>& work) {
  look();
  const std::scoped_lock lock(mutex_);
  pending_.emplace_back(id, work);
}

void Recording::look() {
  const std::scoped_lock lock(mutex_);
  // They end in the order in which they were called; those that failed say so themselves.
  while (!pending_.empty() && pending_.front().second->isCompleted()) {
    recorder.set_completed(pending_.front().first);
    pending_.pop_front();
  }
}

RecordedWork::RecordedWork(std::shared_ptr<Recording> recording, FlightRecorder::Id id,
                           c10::intrusive_ptr<c10d::Work> inner, bool told_by_wait)
    : Work(-1, inner->retrieveOpType()),
      recording_(std::move(recording)),
      id_(id),
      inner_(std::move(inner)),
      future_tells_(recording_->futures_tell && !told_by_wait) {
  if (future_tells_) {
    inner_->getFuture()->addCallback([recording = recording_, id = id_](c10::ivalue::Future& future) {
      if (future.hasError())
        recording->explain(id, future.exception_ptr());  // here and now: perhaps nobody ever waits
      else
        recording->recorder.set_completed(id);
    });
  } else if (!told_by_wait) {
    recording_->keep_looking_at(id_, inner_);
  }
}

bool RecordedWork::wait(std::chrono::milliseconds timeout) {
  try {
    const bool done = inner_->wait(timeout);
    if (!future_tells_ && recording_->futures_tell) recording_->recorder.set_completed(id_);
    return done;
  } catch (...) {
    std::rethrow_exception(recording_->explain(id_, std::current_exception()));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> RecordedWork::getFuture() {
  auto inner = inner_->getFuture();
  if (!future_tells_) return inner;
  auto outer = inner->createInstance(inner->elementType());
  inner->addCallback([outer, recording = recording_, id = id_](c10::ivalue::Future& future) {
    if (future.hasError())
      outer->setError(recording->explain(id, future.exception_ptr()));
    else
      outer->markCompleted(future.value(), future.storages());
  });
  return outer;
}

}  // namespace ddprun::ddp
