"""Call sites in C++, on `executorch::extension::Module`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.call_sites.methods import (
    Size,
    find_places,
    find_symbols,
    is_symbol,
)
from pipeline.features.call_sites.names import pascal, snake, unique

Json = Mapping[str, Any]
DTYPES = {
    "bfloat16": "BFloat16",
    "bool": "Bool",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "int8": "Char",
    "uint8": "Byte",
}
LACKS = ()  # no feature that packages may need
# Words of the language, and names of the generated code.
_RESERVED = """
alignas alignof and asm auto bool break case catch char class const constexpr continue default
delete do double else enum explicit export extern false float for friend goto if inline int long
mutable namespace new not operator or private protected public register return short signed sizeof
static struct switch template this throw true try typedef typeid typename union unsigned using
virtual void volatile while xor detail module module_ outputs result symbols
"""
_TYPES = {"bool": "bool", "float": "double", "int": "int64_t", "tensor": "Tensor"}
_RETURNED = {**_TYPES, "str": "std::string"}
_GETTERS = {
    "bool": "toBool()",
    "float": "toDouble()",
    "int": "toInt()",
    "str": "toString()",
    "tensor": "toTensor()",
}
_TAGS = {"bool": "isBool", "float": "isDouble", "int": "isInt", "str": "isString"}
_HEAD = """\
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr.h>
#include <executorch/runtime/platform/log.h>

namespace {namespace} {{

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Result;

namespace detail {{

// A size of an input: its limits, and the place of its symbol, -1 for none. Sizes of one symbol are
// equal in a call.
struct Size {{
  int64_t least;
  int64_t most;
  int symbol;
}};

inline bool fits(
    int64_t value,
    const Size& size,
    const char* name,
    std::vector<int64_t>& symbols) {{
  if (value < size.least || value > size.most) {{
    ET_LOG(Error, "%s: size %lld, must be from %lld to %lld", name, (long long)value,
           (long long)size.least, (long long)size.most);
    return false;
  }}
  if (size.symbol < 0) {{
    return true;
  }}
  int64_t& bound = symbols[size.symbol];
  if (bound >= 0 && bound != value) {{
    ET_LOG(Error, "%s: size %lld, must be %lld as another one", name, (long long)value,
           (long long)bound);
    return false;
  }}
  bound = value;
  return true;
}}

inline bool fits(
    const TensorPtr& tensor,
    ScalarType dtype,
    std::initializer_list<Size> sizes,
    const char* name,
    std::vector<int64_t>& symbols) {{
  if (!tensor || tensor->scalar_type() != dtype || tensor->dim() != (ssize_t)sizes.size()) {{
    ET_LOG(Error, "%s: has the wrong dtype or rank", name);
    return false;
  }}
  int dimension = 0;
  for (const Size& size : sizes) {{
    if (!fits(tensor->size(dimension++), size, name, symbols)) {{
      return false;
    }}
  }}
  return true;
}}

}} // namespace detail
"""


def render(facts: Json) -> Iterator[str]:
    """Yield the lines of a header; `facts` is the result of `verb.find_facts`."""
    yield f"// {facts['title']}"
    yield "// Tensors that a method returns are valid until the next call. Not for several threads."
    yield _HEAD.format(namespace=facts["namespace"])
    yield ""
    yield f"class {facts['class']} {{"
    yield " public:"
    yield from _render_constructor(facts)
    names = unique((snake(method["name"]) for method in facts["methods"]), _RESERVED)
    for name, method in zip(names, facts["methods"], strict=True):
        yield ""
        yield from _render_method(name, method)
    yield ""
    yield " private:"
    yield "  Module module_;"
    yield "};"
    yield ""
    yield f"}} // namespace {facts['namespace']}"


def _render_constructor(facts: Json) -> Iterator[str]:
    arguments, passed = "const std::string& pte", "pte, "
    if facts["data_files"]:
        arguments += ", std::vector<std::string> ptds"
        passed += "std::move(ptds), "
        yield f"  // Loaded with {', '.join(facts['data_files'])}, as `ptds`."
    # The last argument shares arenas; the others are set to their defaults.
    shared = ", nullptr, nullptr, nullptr, true" if facts["shares_state"] else ""
    if shared:
        yield "  // Methods share state, and so memory."
    yield f"  explicit {facts['class']}({arguments})"
    yield f"      : module_({passed}Module::LoadMode::Mmap{shared}) {{}}"
    yield ""
    yield "  Module& module() {"
    yield "    return module_;"
    yield "  }"


def _render_method(name: str, method: Json) -> Iterator[str]:
    if method["constant"]:
        yield from _render_constant(name, method)
        return
    outputs = [output for output in method["outputs"] if output["kind"] != "fixed"]
    fields = unique((snake(output["name"]) for output in outputs), _RESERVED)
    arguments = unique((snake(item["name"]) for item in method["inputs"]), _RESERVED)
    record = f"{pascal(name)}Outputs"
    yield f"  struct {record} {{"
    for field, output in zip(fields, outputs, strict=True):
        yield f"    {_RETURNED[output['kind']]} {field}; // {output['text']}"
    yield "  };"
    yield ""
    parameters = []
    for argument, item in zip(arguments, method["inputs"], strict=True):
        yield f"  // {argument}: {item['text']}"
        if item["kind"] == "tensor":
            parameters.append(f"const TensorPtr& {argument}")
        elif item["kind"] != "fixed":
            parameters.append(f"{_TYPES[item['kind']]} {argument}")
    yield f"  Result<{record}> {name}({', '.join(parameters)}) {{"
    yield from _render_checks(arguments, method)
    values = [_pass(*pair) for pair in zip(arguments, method["inputs"], strict=True)]
    yield f'    auto result = module_.execute("{method["name"]}",'
    yield f"                                  std::vector<EValue>{{{', '.join(values)}}});"
    yield "    if (!result.ok()) {"
    yield "      return result.error();"
    yield "    }"
    yield "    const auto& outputs = *result;"
    yield f"    if (outputs.size() != {len(method['outputs'])}) {{"
    yield "      return Error::InvalidProgram;"
    yield "    }"
    places = find_places(method)
    read = [
        f"outputs[{place}].{_GETTERS[output['kind']]}"
        for place, output in zip(places, outputs, strict=True)
    ]
    yield f"    return {record}{{{', '.join(read)}}};"
    yield "  }"


def _render_checks(arguments: list[str], method: Json) -> Iterator[str]:
    """Yield the lines that reject inputs which the method doesn't accept."""
    symbols = find_symbols(method)
    yield f"    std::vector<int64_t> symbols({len(symbols)}, -1);"
    conditions = []
    for argument, item in zip(arguments, method["inputs"], strict=True):
        sizes = [_size(size, symbols) for size in item.get("sizes", ())]
        name = f'"{method["name"]}: {argument}", symbols'
        if item["kind"] == "tensor":
            dtype = f"ScalarType::{DTYPES[item['dtype']]}"
            conditions.append(
                f"detail::fits({argument}, {dtype}, {{{', '.join(sizes)}}}, {name})"
            )
        elif item["kind"] == "int":
            conditions.append(
                f"detail::fits({argument}, detail::Size{sizes[0]}, {name})"
            )
    for condition in conditions:
        yield f"    if (!{condition}) {{"
        yield "      return Error::InvalidArgument;"
        yield "    }"


def _size(size: Size, symbols: list[str]) -> str:
    least, most, expression = size
    upper = "INT64_MAX" if most is None else str(most)
    place = symbols.index(expression) if is_symbol(expression) else -1
    return f"{{{least}, {upper}, {place}}}"


def _pass(argument: str, item: Json) -> str:
    """Return the expression that passes an input to the runtime."""
    if item["kind"] == "tensor":
        return f"EValue(*{argument})"
    if item["kind"] != "fixed":
        return f"EValue({argument})"
    value = item["value"]
    if value is None:
        return "EValue()"
    if isinstance(value, bool):  # bool is a subclass of int
        return f"EValue({str(value).lower()})"
    return f"EValue({_TYPES[type(value).__name__]}({value!r}))"


def _render_constant(name: str, method: Json) -> Iterator[str]:
    (output,) = method["outputs"]
    kind = output["kind"]
    yield f"  Result<{_RETURNED[kind]}> {name}() {{"
    yield f'    auto result = module_.execute("{method["name"]}");'
    yield "    if (!result.ok()) {"
    yield "      return result.error();"
    yield "    }"
    # `EValue`'s getters abort the process if the value is of another kind.
    yield f"    if (result->size() != 1 || !result->at(0).{_TAGS[kind]}()) {{"
    yield "      return Error::InvalidProgram;"
    yield "    }"
    value = f"result->at(0).{_GETTERS[kind]}"
    if kind == "str":
        # A view into the method's memory, which the next call may overwrite.
        yield f"    const auto text = {value};"
        yield "    return std::string(text.data(), text.size());"
    else:
        yield f"    return {value};"
    yield "  }"
