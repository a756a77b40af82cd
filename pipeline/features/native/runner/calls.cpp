#include "calls.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace runner {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;

namespace {
// Of `extension/module/module.h`, `share_memory_arenas`: memory ids 1 and 2.
constexpr size_t kSharedArenas = 2;
}  // namespace

Error Group::load(
    const Package& package, const std::vector<std::string>& names, Tracing tracing) {
  if (tracing != Tracing::kOff) {
    trace_ = std::make_unique<Trace>(tracing);
  }
  std::vector<std::vector<size_t>> sizes;
  const Error planned = plan_memory(package, names, sizes);
  if (planned != Error::Ok) {
    return planned;
  }
  for (size_t place = 0; place < names.size(); ++place) {
    auto loaded = std::make_unique<Loaded>();
    for (size_t arena = 0; arena < sizes[place].size(); ++arena) {
      const bool is_shared = names.size() > 1 && arena < kSharedArenas;
      if (!is_shared) {
        arenas_.push_back(std::make_unique<Arena>(sizes[place][arena]));
      }
      const Arena& memory = is_shared ? *arenas_[arena] : *arenas_.back();
      if (!memory.ok()) {
        return Error::MemoryAllocationFailed;
      }
      loaded->spans.emplace_back(memory.data(), sizes[place][arena]);
    }
    const Error error = load_one(package, names[place], *loaded);
    if (error != Error::Ok) {
      return error;
    }
    methods_[names[place]] = std::move(loaded);
  }
  return Error::Ok;
}

Error Group::plan_memory(
    const Package& package,
    const std::vector<std::string>& names,
    std::vector<std::vector<size_t>>& sizes) {
  size_t shared[kSharedArenas] = {};
  size_t total = 0;
  for (const std::string& name : names) {
    const auto meta = package.program().method_meta(name.c_str());
    if (!meta.ok()) {
      return meta.error();
    }
    sizes.emplace_back();
    for (size_t arena = 0; arena < meta->num_memory_planned_buffers(); ++arena) {
      const auto size = meta->memory_planned_buffer_size(arena);
      if (!size.ok()) {
        return size.error();
      }
      const auto bytes = static_cast<size_t>(*size);
      if (*size < 0 || bytes > machine_memory() - total) {
        return Error::MemoryAllocationFailed;
      }
      total += bytes;
      sizes.back().push_back(bytes);
      if (arena < kSharedArenas) {
        shared[arena] = std::max(shared[arena], bytes);
      }
    }
  }
  for (size_t arena = 0; names.size() > 1 && arena < kSharedArenas; ++arena) {
    arenas_.push_back(std::make_unique<Arena>(shared[arena]));
  }
  return Error::Ok;
}

Error Group::load_one(const Package& package, const std::string& name, Loaded& loaded) {
  loaded.planned = std::make_unique<HierarchicalAllocator>(
      executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(
          loaded.spans.data(), loaded.spans.size()));
  loaded.memory = std::make_unique<MemoryManager>(
      &loaded.method_memory, loaded.planned.get(), &loaded.temporary);
  auto method = package.program().load_method(
      name.c_str(), loaded.memory.get(), trace_ ? trace_->tracer() : nullptr, package.data());
  if (!method.ok()) {
    return method.error();
  }
  loaded.method = std::make_unique<Method>(std::move(*method));
  return give_outputs(loaded);
}

// Gives memory to the outputs that the plan leaves to the caller.
Error Group::give_outputs(Loaded& loaded) {
  const auto meta = loaded.method->method_meta();
  for (size_t place = 0; place < loaded.method->outputs_size(); ++place) {
    if (!loaded.method->get_output(place).isTensor()) {
      continue;
    }
    const auto info = meta.output_tensor_meta(place);
    const auto& tensor = loaded.method->get_output(place).toTensor();
    if (!info.ok() || info->is_memory_planned() || tensor.const_data_ptr() != nullptr) {
      continue;
    }
    if (info->nbytes() > machine_memory()) {
      return Error::MemoryAllocationFailed;
    }
    loaded.outputs.emplace_back(info->nbytes());
    // An output that is an input, too, has the input's memory, and is refused here.
    (void)loaded.method->set_output_data_ptr(
        loaded.outputs.back().data(), loaded.outputs.back().size(), place);
  }
  return Error::Ok;
}

Outcome Group::call(const std::string& name, Values& inputs, const Repeats& repeats) {
  Outcome outcome;
  const auto found = methods_.find(name);
  if (found == methods_.end()) {
    throw BadRequest("a method is called that was not loaded");
  }
  Loaded& loaded = *found->second;
  // The runtime refuses other numbers only for some ways to set them.
  if (inputs.values().size() != loaded.method->inputs_size()) {
    outcome.error = Error::InvalidArgument;
    return outcome;
  }
  for (uint32_t repeat = 0; repeat < repeats.warm_up; ++repeat) {
    uint64_t dropped = 0;
    outcome.error = execute(loaded, inputs, dropped);
    if (outcome.error != Error::Ok) {
      return outcome;
    }
  }
  if (trace_ && repeats.warm_up > 0) {
    trace_->restart();
  }
  for (uint32_t repeat = 0; repeat < repeats.count; ++repeat) {
    uint64_t nanoseconds = 0;
    std::this_thread::sleep_for(std::chrono::microseconds(repeats.pause_microseconds));
    outcome.error = execute(loaded, inputs, nanoseconds);
    if (outcome.error != Error::Ok) {
      return outcome;
    }
    outcome.nanoseconds.push_back(nanoseconds);
    std::vector<std::string> outputs;
    for (size_t place = 0; place < loaded.method->outputs_size(); ++place) {
      outputs.push_back(serialize(loaded.method->get_output(place)));
    }
    if (repeat == 0) {
      outcome.outputs = std::move(outputs);
    } else if (outputs != outcome.outputs) {
      ++outcome.differing;
    }
  }
  return outcome;
}

Error Group::execute(Loaded& loaded, Values& inputs, uint64_t& nanoseconds) {
  inputs.restore();
  for (size_t place = 0; place < inputs.values().size(); ++place) {
    const Error error = loaded.method->set_input(inputs.values()[place], place);
    if (error != Error::Ok) {
      return error;
    }
  }
  const auto started = std::chrono::steady_clock::now();
  const Error error = loaded.method->execute();
  const auto ended = std::chrono::steady_clock::now();
  nanoseconds = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(ended - started).count());
  return error;
}

size_t Group::planned_bytes() const {
  size_t total = 0;
  for (const auto& arena : arenas_) {
    total += arena->size();
  }
  return total;
}

size_t Group::method_bytes() const {
  size_t total = 0;
  for (const auto& [name, loaded] : methods_) {
    total += loaded->method_memory.peak();
  }
  return total;
}

size_t Group::temporary_bytes() const {
  size_t peak = 0;
  for (const auto& [name, loaded] : methods_) {
    peak = std::max(peak, loaded->temporary.peak());
  }
  return peak;
}

}  // namespace runner
