// The bytes between a runner and whoever started it: little-endian numbers, and texts with their
// length in front. Nothing is read beyond what its reader says it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace runner {

// The other side asks for something that no request can mean, or is gone.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kMostText = 1 << 16;
constexpr uint32_t kMostItems = 1 << 16;

class Wire {
 public:
  Wire(int in, int out) : in_(in), out_(out) {}

  // Reads exactly `size` bytes; false where the stream ends before the first of them.
  bool read(void* data, size_t size);

  template <typename Number>
  Number number() {
    Number value{};
    if (!read(&value, sizeof value)) {
      throw BadRequest("the request ends too early");
    }
    return value;
  }
  uint32_t count(uint32_t most = kMostItems);
  std::string text();

  void write(const void* data, size_t size);
  template <typename Number>
  void put(Number value) {
    write(&value, sizeof value);
  }
  void put_text(const std::string& text);
  void flush();

 private:
  int in_;
  int out_;
  std::string pending_;
};

}  // namespace runner
