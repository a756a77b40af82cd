// Runs a package on ExecuTorch's runtime, for whoever started it: `pte_runner [--kernels LIBRARY.so
// ...] FILE.pte [FILE.ptd ...]` reads requests from its input and writes an answer to each to its
// output. It ends with its input, with status 0; after a request that makes no sense, or without a
// library that it can't load, with 2.
//
// An answer begins with the runtime's error, 0 for none, and the lines of its log. What ends the
// process, such as a failed check of the runtime, shows in its status and its stderr.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <unistd.h>

#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#include "calls.h"
#include "libraries.h"
#include "log.h"
#include "memory.h"
#include "package.h"
#include "wire.h"

namespace runner {
namespace {

using executorch::runtime::Error;
constexpr uint32_t kVersion = 2;  // of requests and answers
constexpr uint32_t kMostRepeats = 100000;
constexpr uint32_t kMostMicroseconds = 60000000;
enum Request : uint32_t { kLoad = 1, kCall, kMemory, kDrop, kOperators, kTrace };

uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

class Runner {
 public:
  // `of_libraries`: bytes that loading further kernels took.
  Runner(Wire& wire, size_t memory_at_start, size_t of_libraries)
      : wire_(wire), memory_at_start_(memory_at_start), of_libraries_(of_libraries) {}

  void open(const std::string& pte, const std::vector<std::string>& ptds) {
    const auto start = std::chrono::steady_clock::now();
    const Error error = package_.open(pte, ptds);
    is_open_ = error == Error::Ok;
    wire_.put(kVersion);
    put_status(error);
    wire_.put(nanoseconds_since(start));
    wire_.flush();
  }

  // Answers the next request; false where there is none.
  bool answer() {
    uint32_t request = 0;
    if (!wire_.read(&request, sizeof request)) {
      return false;
    }
    if (!is_open_) {
      throw BadRequest("the package is not open");
    }
    switch (request) {
      case kLoad:
        load();
        break;
      case kCall:
        call();
        break;
      case kMemory:
        report_memory();
        break;
      case kDrop:
        groups_.erase(wire_.number<uint32_t>());
        put_status(Error::Ok);
        break;
      case kOperators:
        report_operators();
        break;
      case kTrace:
        send_trace();
        break;
      default:
        throw BadRequest("no request has the number " + std::to_string(request));
    }
    wire_.flush();
    return true;
  }

 private:
  void put_status(Error error) {
    wire_.put(static_cast<uint32_t>(error));
    const auto lines = take_log();
    wire_.put(static_cast<uint32_t>(lines.size()));
    for (const std::string& line : lines) {
      wire_.put_text(line);
    }
  }

  Group& group(uint32_t number) {
    const auto found = groups_.find(number);
    if (found == groups_.end()) {
      throw BadRequest("no methods were loaded under the number " + std::to_string(number));
    }
    return *found->second;
  }

  void load() {
    const auto number = wire_.number<uint32_t>();
    const auto tracing = static_cast<Tracing>(wire_.count(2));
    std::vector<std::string> names(wire_.count());
    for (std::string& name : names) {
      name = wire_.text();
    }
    groups_.erase(number);
    auto group = std::make_unique<Group>();
    const auto start = std::chrono::steady_clock::now();
    const Error error = group->load(package_, names, tracing);
    const uint64_t nanoseconds = nanoseconds_since(start);
    if (error == Error::Ok) {
      groups_[number] = std::move(group);
    }
    put_status(error);
    wire_.put(nanoseconds);
  }

  void call() {
    Group& called = group(wire_.number<uint32_t>());
    const std::string name = wire_.text();
    Repeats repeats;
    repeats.warm_up = wire_.count(kMostRepeats);
    repeats.count = wire_.count(kMostRepeats);
    repeats.pause_microseconds = wire_.count(kMostMicroseconds);
    Values inputs;
    const uint32_t count = wire_.count();
    for (uint32_t place = 0; place < count; ++place) {
      inputs.read(wire_);
    }
    const Outcome outcome = called.call(name, inputs, repeats);
    put_status(outcome.error);
    wire_.put(static_cast<uint32_t>(outcome.outputs.size()));
    for (const std::string& output : outcome.outputs) {
      wire_.write(output.data(), output.size());
    }
    wire_.put(static_cast<uint32_t>(outcome.nanoseconds.size()));
    for (const uint64_t nanoseconds : outcome.nanoseconds) {
      wire_.put(nanoseconds);
    }
    wire_.put(outcome.differing);
  }

  void report_memory() {
    const Group& loaded = group(wire_.number<uint32_t>());
    put_status(Error::Ok);
    const size_t figures[] = {
        memory_at_start_,
        resident_memory(true) - of_libraries_,
        loaded.planned_bytes(),
        loaded.method_bytes(),
        loaded.temporary_bytes()};
    for (const size_t bytes : figures) {
      wire_.put(static_cast<uint64_t>(bytes));
    }
  }

  // The operators that the runtime has kernels for, each once, as packages name them.
  void report_operators() {
    std::set<std::string> names;
    for (const auto& kernel : executorch::runtime::get_registered_kernels()) {
      names.insert(kernel.name_);
    }
    put_status(Error::Ok);
    wire_.put(static_cast<uint32_t>(names.size()));
    for (const std::string& name : names) {
      wire_.put_text(name);
    }
  }

  void send_trace() {
    Trace* trace = group(wire_.number<uint32_t>()).trace();
    if (trace == nullptr) {
      throw BadRequest("the methods were loaded without a trace");
    }
    put_status(Error::Ok);
    const std::string dump = trace->finish();
    for (const std::string* bytes : {&dump, &trace->values()}) {
      wire_.put(static_cast<uint64_t>(bytes->size()));
      wire_.write(bytes->data(), bytes->size());
    }
  }

  Wire& wire_;
  size_t memory_at_start_;
  size_t of_libraries_;
  bool is_open_ = false;
  Package package_;
  std::map<uint32_t, std::unique_ptr<Group>> groups_;
};

// Loads the libraries that the first arguments name, and takes these away. Returns whether all are.
bool load_libraries(int& count, char**& arguments) {
  while (count > 2 && std::strcmp(arguments[1], "--kernels") == 0) {
    const std::string problem = load_library(arguments[2]);
    if (!problem.empty()) {
      std::fprintf(stderr, "%s\n", problem.c_str());
      return false;
    }
    count -= 2;
    arguments += 2;
  }
  return true;
}

int run(int count, char** arguments) {
  // What a library prints must not end up among the answers.
  const int out = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  executorch::runtime::runtime_init();
  const size_t memory_at_start = resident_memory(false);
  if (!load_libraries(count, arguments)) {
    return 2;
  }
  if (count < 2) {
    std::fprintf(stderr, "usage: pte_runner [--kernels LIBRARY.so ...] FILE.pte [FILE.ptd ...]\n");
    return 2;
  }
  collect_log();
  Wire wire(STDIN_FILENO, out);
  try {
    const size_t of_libraries = resident_memory(false) - memory_at_start;
    Runner runner(wire, memory_at_start, of_libraries);
    runner.open(arguments[1], {arguments + 2, arguments + count});
    while (runner.answer()) {
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pte_runner: %s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace runner

int main(int count, char** arguments) {
  return runner::run(count, arguments);
}
