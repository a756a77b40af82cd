#include "package.h"

namespace runner {

using executorch::runtime::Error;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Program;

Error Package::open(const std::string& pte, const std::vector<std::string>& ptds) {
  auto loader = Loader::from(pte.c_str(), Loader::MlockConfig::NoMlock);
  if (!loader.ok()) {
    return loader.error();
  }
  loader_ = std::make_unique<Loader>(std::move(*loader));
  auto program = Program::load(loader_.get(), Program::Verification::InternalConsistency);
  if (!program.ok()) {
    return program.error();
  }
  program_ = std::make_unique<Program>(std::move(*program));
  return open_data(ptds);
}

Error Package::open_data(const std::vector<std::string>& ptds) {
  std::vector<const NamedDataMap*> maps;
  for (const std::string& ptd : ptds) {
    auto loader = Loader::from(ptd.c_str(), Loader::MlockConfig::NoMlock);
    if (!loader.ok()) {
      return loader.error();
    }
    data_loaders_.push_back(std::make_unique<Loader>(std::move(*loader)));
    auto map = FlatTensors::load(data_loaders_.back().get());
    if (!map.ok()) {
      return map.error();
    }
    data_maps_.push_back(std::make_unique<FlatTensors>(std::move(*map)));
    maps.push_back(data_maps_.back().get());
  }
  if (maps.size() == 1) {
    data_ = maps.front();
  } else if (!maps.empty()) {
    auto merged = executorch::extension::merged_data_map::MergedDataMap::load({maps.data(), maps.size()});
    if (!merged.ok()) {
      return merged.error();
    }
    merged_ = std::make_unique<executorch::extension::merged_data_map::MergedDataMap>(std::move(*merged));
    data_ = merged_.get();
  }
  return Error::Ok;
}

}  // namespace runner
