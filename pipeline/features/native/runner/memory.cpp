#include "memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>

namespace runner {

size_t machine_memory() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
      static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t resident_memory(bool peak) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) {
    return 0;
  }
  const char* name = peak ? "VmHWM:" : "VmRSS:";
  size_t kilobytes = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, name, std::strlen(name)) == 0) {
      kilobytes = std::strtoull(line + std::strlen(name), nullptr, 10);
    }
  }
  std::fclose(file);
  return kilobytes * 1024;
}

void* CountingAllocator::allocate(size_t size, size_t alignment) {
  if (!isPowerOf2(alignment) || size > machine_memory() || alignment > machine_memory() ||
      used_ > machine_memory() - size) {
    return nullptr;
  }
  std::unique_ptr<uint8_t[]> block(new (std::nothrow) uint8_t[size + alignment]);
  if (!block) {
    return nullptr;
  }
  uint8_t* place = alignPointer(block.get(), alignment);
  blocks_.push_back(std::move(block));
  used_ += size;
  peak_ = used_ > peak_ ? used_ : peak_;
  return place;
}

void CountingAllocator::reset() {
  blocks_.clear();
  used_ = 0;
}

// calloc, not new: pages that are never written are never resident, as on a device. The alignment
// of 16 bytes is what the runtime's own tools give planned memory.
Arena::Arena(size_t size)
    : size_(size),
      data_(
          size > 0 && size <= machine_memory() ? static_cast<uint8_t*>(std::calloc(size, 1))
                                               : nullptr) {}

void Arena::Free::operator()(uint8_t* data) const {
  std::free(data);
}

}  // namespace runner
