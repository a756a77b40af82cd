// Methods that are loaded together, and their calls. Each keeps its state from call to call.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>

#include "memory.h"
#include "package.h"
#include "trace.h"
#include "values.h"

namespace runner {

// What came of calls of one method on the same inputs.
struct Outcome {
  executorch::runtime::Error error = executorch::runtime::Error::Ok;
  std::vector<std::string> outputs;    // of the first call, as they are sent
  std::vector<uint64_t> nanoseconds;   // of each call, without reading and copying inputs
  uint32_t differing = 0;              // calls with another byte in their outputs than the first
};

// How often a method is called, and how.
struct Repeats {
  uint32_t warm_up = 0;             // calls before, whose times and outputs are dropped
  uint32_t count = 1;
  uint32_t pause_microseconds = 0;  // before each call, in which a hot device cools
};

class Group {
 public:
  // Loads methods in their initial state. Several share the memory that an app's own Module gives
  // them to share: the first two arenas, which hold activations and shared mutable buffers.
  executorch::runtime::Error load(
      const Package& package, const std::vector<std::string>& names, Tracing tracing);

  // The trace, where there is one, begins after the calls of the warm-up.
  Outcome call(const std::string& name, Values& inputs, const Repeats& repeats);

  // The trace of all methods; null where they were loaded without one.
  Trace* trace() { return trace_.get(); }

  size_t planned_bytes() const;
  size_t method_bytes() const;
  size_t temporary_bytes() const;

 private:
  struct Loaded {
    CountingAllocator method_memory;
    CountingAllocator temporary;
    std::vector<executorch::runtime::Span<uint8_t>> spans;
    std::unique_ptr<executorch::runtime::HierarchicalAllocator> planned;
    std::unique_ptr<executorch::runtime::MemoryManager> memory;
    std::vector<std::vector<uint8_t>> outputs;  // those without planned memory
    std::unique_ptr<executorch::runtime::Method> method;
  };

  executorch::runtime::Error plan_memory(
      const Package& package,
      const std::vector<std::string>& names,
      std::vector<std::vector<size_t>>& sizes);
  executorch::runtime::Error load_one(
      const Package& package, const std::string& name, Loaded& loaded);
  executorch::runtime::Error give_outputs(Loaded& loaded);
  executorch::runtime::Error execute(Loaded& loaded, Values& inputs, uint64_t& nanoseconds);

  std::unique_ptr<Trace> trace_;  // outlives the methods that write to it
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::map<std::string, std::unique_ptr<Loaded>> methods_;
};

}  // namespace runner
