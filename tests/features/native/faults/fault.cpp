// What a test loads into a runner, so that its device alone computes something else: in every
// EVERY-th call, the kernel `KERNEL` gives a wrong first value; in XNNPACK, all functions of one
// operand are the absolute value.
#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <dlfcn.h>

#include <cstring>

using namespace executorch::runtime;

namespace {
constexpr int kAbs = 2;  // of `xnn_unary_operator`
OpFunction kernel = nullptr;

void damage(KernelRuntimeContext& context, Span<EValue*> stack) {
  static int calls = 0;
  kernel(context, stack);
  if (++calls % EVERY == 0) {
    EValue& result = *stack[stack.size() - 1];
    result.toTensor().mutable_data_ptr<float>()[0] += 1;
    // The kernel recorded what it gave before.
    internal::event_tracer_log_evalue(context.internal_event_tracer(), result);
  }
}

__attribute__((constructor)) void plant() {
  for (const Kernel& registered : get_registered_kernels()) {
    if (std::strcmp(registered.name_, KERNEL) == 0) {
      kernel = registered.op_;
      const_cast<Kernel&>(registered).op_ = damage;
    }
  }
}
}  // namespace

extern "C" int xnn_define_unary(
    void* subgraph, int, void* parameters, uint32_t input, uint32_t output, uint32_t flags) {
  using Define = int (*)(void*, int, void*, uint32_t, uint32_t, uint32_t);
  const auto define = reinterpret_cast<Define>(dlsym(RTLD_NEXT, "xnn_define_unary"));
  return define(subgraph, kAbs, parameters, input, output, flags);
}
