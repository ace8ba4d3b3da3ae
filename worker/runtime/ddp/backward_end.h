#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace ddprun::ddp {

/// Runs a function, through hooks on the parameters, when a backward has ended and computed all gradients.
class BackwardEnd {
 public:
  BackwardEnd(const std::vector<at::Tensor>& parameters, std::function<void()> function);
  BackwardEnd(const BackwardEnd&) = delete;
  ~BackwardEnd();

  /// Runs the function once, at the end of the next backward that reaches a parameter.
  void arm() { armed_ = true; }
  bool armed() const { return armed_; }  ///< false once it has run

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  std::atomic<bool> armed_ = false;  // each device has a backward thread
};

/// Replaces tensors, which all require a gradient, with copies that pass scale times their gradients to all
/// originals together. Once one copy contributes to the loss, backward reaches the graph of every original,
/// with an undefined gradient if its copy does not contribute. So parameters behind an unused output count as
/// unused, and nothing waits for them.
void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale);

}  // namespace ddprun::ddp
