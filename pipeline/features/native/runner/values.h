// The inputs and outputs of a call, as they are sent: a tag, then a number, a text, or a tensor with
// its dtype, sizes, the order of its dimensions in memory, and its bytes.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/core/evalue.h>

#include "wire.h"

namespace runner {

// Owns what the values of a call point to.
class Values {
 public:
  // Reads a value. Throws BadRequest where a tensor's bytes are not those of its sizes.
  void read(Wire& wire);

  const std::vector<executorch::runtime::EValue>& values() const { return values_; }
  // Gives tensors the bytes again that they were read with: a method may write to its inputs.
  void restore();

 private:
  struct Tensor {
    std::vector<int32_t> sizes;
    std::vector<uint8_t> order;
    std::vector<int32_t> strides;
    std::vector<uint8_t> bytes;
    std::vector<uint8_t> original;
    std::unique_ptr<executorch::runtime::etensor::TensorImpl> impl;
  };

  void read_tensor(Wire& wire);

  std::vector<executorch::runtime::EValue> values_;
  std::deque<Tensor> tensors_;
};

// Returns the bytes of a value as they are sent. Throws BadRequest for a kind that can't be.
std::string serialize(const executorch::runtime::EValue& value);

}  // namespace runner
