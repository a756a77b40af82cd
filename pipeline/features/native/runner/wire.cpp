#include "wire.h"

#include <cerrno>
#include <unistd.h>

namespace runner {
namespace {
constexpr size_t kBuffer = 1 << 20;
}

bool Wire::read(void* data, size_t size) {
  auto* bytes = static_cast<char*>(data);
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(in_, bytes + done, size - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      if (got == 0 && done == 0) {
        return false;
      }
      throw BadRequest("the request ends too early");
    }
    done += static_cast<size_t>(got);
  }
  return true;
}

uint32_t Wire::count(uint32_t most) {
  const auto value = number<uint32_t>();
  if (value > most) {
    throw BadRequest("a count of " + std::to_string(value) + " exceeds " + std::to_string(most));
  }
  return value;
}

std::string Wire::text() {
  std::string text(count(kMostText), '\0');
  if (!text.empty() && !read(text.data(), text.size())) {
    throw BadRequest("a text ends too early");
  }
  return text;
}

void Wire::write(const void* data, size_t size) {
  pending_.append(static_cast<const char*>(data), size);
  if (pending_.size() >= kBuffer) {
    flush();
  }
}

void Wire::put_text(const std::string& text) {
  const std::string cut = text.substr(0, kMostText);
  put(static_cast<uint32_t>(cut.size()));
  write(cut.data(), cut.size());
}

void Wire::flush() {
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t sent = ::write(out_, pending_.data() + done, pending_.size() - done);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      throw BadRequest("nobody reads the answer");
    }
    done += static_cast<size_t>(sent);
  }
  pending_.clear();
}

}  // namespace runner
