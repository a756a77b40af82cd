// The runtime's log, collected: an error has only a code, and the log names the operator.
#pragma once

#include <string>
#include <vector>

namespace runner {

// Collects from now on; what ends the process goes to stderr at once.
void collect_log();

// Returns the lines since the last call, at most 64, without their places in the runtime's source.
std::vector<std::string> take_log();

}  // namespace runner
