// Libraries of further kernels, which register themselves as they are loaded.
#pragma once

#include <string>

namespace runner {

// Loads a shared library. Returns why it can't be, or an empty text.
std::string load_library(const std::string& path);

}  // namespace runner
