// Memory that a method asks for, counted, and that of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <executorch/runtime/core/memory_allocator.h>

namespace runner {

// The memory of this machine in bytes: no file may ask for more.
size_t machine_memory();

// The resident set of this process in bytes; `peak` is the greatest that it had. 0 if not known.
size_t resident_memory(bool peak);

// Allocates from the heap, frees all at once, and knows how much it held at most.
class CountingAllocator final : public executorch::runtime::MemoryAllocator {
 public:
  CountingAllocator() : MemoryAllocator(0, nullptr) {}
  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override;
  void reset() override;
  size_t used_size() const override { return used_; }
  size_t free_size() const override { return machine_memory() - used_; }
  size_t peak() const { return peak_; }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  size_t used_ = 0;
  size_t peak_ = 0;
};

// Zeroed memory for tensors; empty where there is not so much.
class Arena {
 public:
  explicit Arena(size_t size);
  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  bool ok() const { return size_ == 0 || data_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };
  size_t size_;
  std::unique_ptr<uint8_t, Free> data_;
};

}  // namespace runner
