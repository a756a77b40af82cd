#include "log.h"

#include <cstdio>
#include <cstring>
#include <mutex>

#include <executorch/runtime/platform/platform.h>

namespace runner {
namespace {

constexpr size_t kMostLines = 64;
constexpr size_t kMostCharacters = 500;
std::mutex mutex;  // threads of a delegate log, too
std::vector<std::string> lines;

void emit(
    et_timestamp_t,
    et_pal_log_level_t level,
    const char* file,
    const char*,
    size_t line,
    const char* message,
    size_t length) {
  if (level == kFatal) {  // the runtime aborts next
    std::fprintf(stderr, "[%s:%zu] %.*s\n", file, line, static_cast<int>(length), message);
    std::fflush(stderr);
  }
  // It reads the processor's names as threads start, which explains no error.
  if (level == kDebug || level == kInfo || std::strstr(file, "cpuinfo_utils")) {
    return;
  }
  const std::lock_guard<std::mutex> guard(mutex);
  if (lines.size() < kMostLines) {
    lines.emplace_back(message, length < kMostCharacters ? length : kMostCharacters);
  }
}

}  // namespace

void collect_log() {
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(emit, __FILE__));
}

std::vector<std::string> take_log() {
  const std::lock_guard<std::mutex> guard(mutex);
  std::vector<std::string> taken;
  taken.swap(lines);
  return taken;
}

}  // namespace runner
