"""A `sitecustomize` that plants regressions when a process imports ExecuTorch: XNNPACK takes no
products, and memory plans are twice as large."""

import sys
from importlib.machinery import PathFinder


def lose_products(module):
    configs = module.ALL_PARTITIONER_CONFIGS
    configs[:] = [config for config in configs if config.__name__ != "MulConfig"]


def grow(module):
    plan = module.greedy

    def greedy(*arguments, **options):
        result = plan(*arguments, **options)
        result.bufsizes = [2 * size for size in result.bufsizes]
        return result

    module.greedy = greedy


PLANTS = {
    "executorch.backends.xnnpack.partition.config": lose_products,
    "executorch.exir.memory_planning": grow,
}


class Planter:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in PLANTS:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def plant(module):
            execute(module)
            PLANTS[name](module)

        spec.loader.exec_module = plant
        return spec


sys.meta_path.insert(0, Planter)
