// Stands in for the module of Python bindings that ExecuTorch's kernels for language models are
// linked to, though they call nothing in it: a library of this name, once loaded, keeps the dynamic
// linker from loading Python.
extern "C" void pte_runner_has_no_bindings() {}
