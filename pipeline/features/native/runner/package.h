// A `.pte` and its `.ptd` files, opened by the runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/named_data_map/merged_data_map.h>
#include <executorch/runtime/executor/program.h>

namespace runner {

class Package {
 public:
  // Maps the files, and has the runtime check that the program's own offsets stay within it.
  executorch::runtime::Error open(const std::string& pte, const std::vector<std::string>& ptds);

  const executorch::runtime::Program& program() const { return *program_; }
  // The data of the `.ptd` files; null where there is none.
  const executorch::runtime::NamedDataMap* data() const { return data_; }

 private:
  using Loader = executorch::extension::MmapDataLoader;
  using FlatTensors = executorch::extension::FlatTensorDataMap;

  executorch::runtime::Error open_data(const std::vector<std::string>& ptds);

  std::unique_ptr<Loader> loader_;
  std::vector<std::unique_ptr<Loader>> data_loaders_;
  std::vector<std::unique_ptr<FlatTensors>> data_maps_;
  std::unique_ptr<executorch::extension::merged_data_map::MergedDataMap> merged_;
  const executorch::runtime::NamedDataMap* data_ = nullptr;
  std::unique_ptr<executorch::runtime::Program> program_;
};

}  // namespace runner
