#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

namespace ddprun::test {

inline c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

/// Equal values, kinds and order.
inline bool same(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isTensor())
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() && a.toTensor().equal(b.toTensor());
  if (a.isTuple()) {
    const auto& left = a.toTupleRef().elements();
    const auto& right = b.toTupleRef().elements();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
  }
  if (a.isList()) {
    const auto left = a.toListRef();
    const auto right = b.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
  }
  if (!a.isGenericDict()) return a == b;
  const auto left = a.toGenericDict();
  const auto right = b.toGenericDict();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& x, const auto& y) {
    return same(x.key(), y.key()) && same(x.value(), y.value());
  });
}

}  // namespace ddprun::test
