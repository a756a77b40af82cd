#include "values.h"

#include <cstring>

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "memory.h"

namespace runner {

using executorch::aten::ScalarType;
using executorch::runtime::EValue;
using executorch::runtime::etensor::TensorImpl;

namespace {

enum Kind : uint8_t { kNone, kTensor, kInt, kDouble, kBool, kText, kList };
constexpr uint32_t kMostDimensions = 16;
constexpr size_t kAlignment = 16;

template <typename Number>
void append(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Number>
std::string number(Kind kind, Number value) {
  std::string bytes;
  append(bytes, kind);
  append(bytes, value);
  return bytes;
}

std::string text(std::string_view value) {
  std::string bytes = number(kText, static_cast<uint32_t>(value.size()));
  bytes.append(value);
  return bytes;
}

std::string tensor(const executorch::aten::Tensor& value) {
  std::string bytes;
  append(bytes, kTensor);
  append(bytes, static_cast<uint8_t>(value.scalar_type()));
  append(bytes, static_cast<uint32_t>(value.dim()));
  for (const auto size : value.sizes()) {
    append(bytes, static_cast<uint32_t>(size));
  }
  for (const auto dimension : value.dim_order()) {
    append(bytes, static_cast<uint8_t>(dimension));
  }
  const size_t size = value.nbytes();
  const void* data = value.const_data_ptr();
  if (size > 0 && data == nullptr) {
    throw BadRequest("an output has no data");
  }
  append(bytes, static_cast<uint64_t>(size));
  if (size > 0) {
    bytes.append(static_cast<const char*>(data), size);
  }
  return bytes;
}

template <typename List>
std::string list(const List& elements) {
  std::string bytes = number(kList, static_cast<uint32_t>(elements.size()));
  for (size_t place = 0; place < elements.size(); ++place) {
    bytes += serialize(EValue(elements[place]));
  }
  return bytes;
}

}  // namespace

void Values::read(Wire& wire) {
  switch (const auto kind = wire.number<uint8_t>()) {
    case kNone:
      values_.emplace_back();
      return;
    case kTensor:
      read_tensor(wire);
      return;
    case kInt:
      values_.emplace_back(wire.number<int64_t>());
      return;
    case kDouble:
      values_.emplace_back(wire.number<double>());
      return;
    case kBool:
      values_.emplace_back(wire.number<uint8_t>() != 0);
      return;
    default:
      throw BadRequest("no value has the tag " + std::to_string(kind));
  }
}

void Values::read_tensor(Wire& wire) {
  Tensor tensor;
  const auto type = static_cast<ScalarType>(wire.number<uint8_t>());
  if (!executorch::runtime::isValid(type)) {
    throw BadRequest("no such dtype");
  }
  const uint32_t rank = wire.count(kMostDimensions);
  for (uint32_t dimension = 0; dimension < rank; ++dimension) {
    tensor.sizes.push_back(static_cast<int32_t>(wire.count(INT32_MAX)));
  }
  for (uint32_t dimension = 0; dimension < rank; ++dimension) {
    tensor.order.push_back(wire.number<uint8_t>());
  }
  const auto size = wire.number<uint64_t>();
  // From the innermost dimension on; the product is checked at each step.
  tensor.strides.assign(rank, -1);
  uint64_t count = 1;
  uint64_t extent = 1;
  for (uint32_t place = rank; place-- > 0;) {
    const uint8_t dimension = tensor.order[place];
    if (dimension >= rank || tensor.strides[dimension] != -1 || extent > INT32_MAX) {
      throw BadRequest("the dimensions of a tensor have no such order");
    }
    tensor.strides[dimension] = static_cast<int32_t>(extent);
    const auto length = static_cast<uint64_t>(tensor.sizes[dimension]);
    extent *= length > 0 ? length : 1;
    count *= length;
  }
  if (size > machine_memory() / 4 || count * executorch::runtime::elementSize(type) != size) {
    throw BadRequest("a tensor's bytes are not those of its sizes");
  }
  tensor.original.resize(size);
  if (size > 0 && !wire.read(tensor.original.data(), size)) {
    throw BadRequest("a tensor ends too early");
  }
  tensor.bytes.resize(size + kAlignment);
  tensors_.push_back(std::move(tensor));
  Tensor& kept = tensors_.back();
  const auto address = reinterpret_cast<uintptr_t>(kept.bytes.data());
  void* data = reinterpret_cast<void*>((address + kAlignment - 1) & ~(kAlignment - 1));
  kept.impl = std::make_unique<TensorImpl>(
      type, rank, kept.sizes.data(), data, kept.order.data(), kept.strides.data());
  values_.emplace_back(executorch::aten::Tensor(kept.impl.get()));
}

void Values::restore() {
  for (Tensor& tensor : tensors_) {
    if (!tensor.original.empty()) {
      std::memcpy(tensor.impl->mutable_data(), tensor.original.data(), tensor.original.size());
    }
  }
}

std::string serialize(const EValue& value) {
  if (value.isNone()) {
    return std::string(1, static_cast<char>(kNone));
  }
  if (value.isTensor()) {
    return tensor(value.toTensor());
  }
  if (value.isInt()) {
    return number(kInt, value.toInt());
  }
  if (value.isDouble()) {
    return number(kDouble, value.toDouble());
  }
  if (value.isBool()) {
    return number(kBool, static_cast<uint8_t>(value.toBool()));
  }
  if (value.isString()) {
    return text(value.toString());
  }
  if (value.isTensorList()) {
    return list(value.toTensorList());
  }
  if (value.isIntList()) {
    return list(value.toIntList());
  }
  if (value.isDoubleList()) {
    return list(value.toDoubleList());
  }
  if (value.isBoolList()) {
    return list(value.toBoolList());
  }
  throw BadRequest("an output is of a kind that can't be sent");
}

}  // namespace runner
