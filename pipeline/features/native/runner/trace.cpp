#include "trace.h"

#include <cstdlib>

namespace runner {

using executorch::runtime::EventTracerDebugLogLevel;
using executorch::runtime::EventTracerProfilingLevel;
using executorch::runtime::Result;

namespace {
constexpr size_t kMostValues = size_t{1} << 29;  // bytes
// What a value has that is not kept: an error would end the process.
constexpr size_t kBeyondAll = size_t{1} << 40;
constexpr size_t kAlignment = 64;                // of the values that an Inspector reads
}  // namespace

Result<size_t> ValueSink::write(const void* data, size_t size) {
  const size_t start = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
  if (start > kMostValues || size > kMostValues - start) {
    return kBeyondAll;
  }
  bytes_.resize(start);
  bytes_.append(static_cast<const char*>(data), size);
  return start;
}

Trace::Trace(Tracing tracing) : tracing_(tracing) {
  restart();
}

void Trace::restart() {
  generator_.reset();
  generator_.set_event_tracer_profiling_level(EventTracerProfilingLevel::kProfileAllEvents);
  if (tracing_ == Tracing::kValues) {
    sink_ = ValueSink();
    generator_.set_data_sink(&sink_);
    generator_.set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
  }
}

std::string Trace::finish() {
  const auto result = generator_.get_etdump_data();
  std::string dump;
  if (result.buf != nullptr) {
    dump.assign(static_cast<const char*>(result.buf), result.size);
    std::free(result.buf);
  }
  return dump;
}

}  // namespace runner
