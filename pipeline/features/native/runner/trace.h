// What a method did while it ran: ExecuTorch's ETDump, which its Inspector reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <executorch/devtools/etdump/data_sinks/data_sink_base.h>
#include <executorch/devtools/etdump/etdump_flatcc.h>

namespace runner {

// What a trace records: times alone, or the values of all operators too.
enum class Tracing : uint32_t { kOff = 0, kTimes, kValues };

// The bytes of values, kept in memory up to a limit; later ones have an offset beyond all bytes.
class ValueSink final : public executorch::etdump::DataSinkBase {
 public:
  executorch::runtime::Result<size_t> write(const void* data, size_t size) override;
  size_t get_used_bytes() const override { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Trace {
 public:
  explicit Trace(Tracing tracing);
  executorch::runtime::EventTracer* tracer() { return &generator_; }
  // Forgets what was recorded so far.
  void restart();
  // Returns the ETDump of what was recorded, after which nothing more can be.
  std::string finish();
  const std::string& values() const { return sink_.bytes(); }

 private:
  Tracing tracing_;
  ValueSink sink_;
  executorch::etdump::ETDumpGen generator_;
};

}  // namespace runner
