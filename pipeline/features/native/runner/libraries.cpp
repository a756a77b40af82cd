#include "libraries.h"

#include <dlfcn.h>

namespace runner {

std::string load_library(const std::string& path) {
  // Lazily, since a library may name functions that only Python's process has, and never call them.
  // It stays loaded: the runtime keeps pointers to its kernels.
  if (dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
    return "";
  }
  const char* reason = dlerror();
  return reason != nullptr ? reason : "the library can't be loaded";
}

}  // namespace runner
