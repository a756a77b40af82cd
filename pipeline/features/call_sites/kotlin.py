"""Call sites in Kotlin, on `org.pytorch.executorch.Module` of ExecuTorch's Android library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.call_sites.methods import (
    Size,
    find_places,
    find_symbols,
    is_symbol,
)
from pipeline.features.call_sites.names import camel, pascal, unique

Json = Mapping[str, Any]
DTYPES = {
    "float16": "HALF",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int32": "INT32",
    "int64": "INT64",
    "int8": "INT8",
    "uint8": "UINT8",
}
LACKS = ("data files", "shared state")  # which `Module.load` doesn't take
_TYPES = {
    "bool": "Boolean",
    "float": "Double",
    "int": "Long",
    "str": "String",
    "tensor": "Tensor",
}
_GETTERS = {
    "bool": "toBool()",
    "float": "toDouble()",
    "int": "toInt()",
    "str": "toStr()",
    "tensor": "toTensor()",
}
# Words of the language, and names of the generated code.
_RESERVED = """
as break checkSize checkTensor class close continue do else false for fun if in interface is module
null object outputs package return super symbols this throw true try typealias typeof val var when
while
"""
_HEAD = """\
import java.io.Closeable
import org.pytorch.executorch.DType
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor
"""
_CHECKS = """\

    /** A size is the least, the most, and the place of its symbol, -1 for none. */
    private fun checkSize(value: Long, size: LongArray, name: String, symbols: LongArray) {
        require(value >= size[0] && value <= size[1]) {
            "$name: size $value, must be from ${size[0]} to ${size[1]}"
        }
        if (size[2] < 0) return
        val bound = symbols[size[2].toInt()]
        require(bound < 0 || bound == value) { "$name: size $value, must be $bound as another one" }
        symbols[size[2].toInt()] = value
    }

    private fun checkTensor(
        value: Tensor,
        dtype: DType,
        sizes: Array<LongArray>,
        name: String,
        symbols: LongArray
    ) {
        val shape = value.shape()
        require(value.dtype() == dtype && shape.size == sizes.size) {
            "$name: is ${value.dtype()} of rank ${shape.size}"
        }
        sizes.forEachIndexed { place, size -> checkSize(shape[place], size, name, symbols) }
    }
}
"""


def render(facts: Json) -> Iterator[str]:
    """Yield the lines of a file; `facts` is the result of `verb.find_facts`."""
    yield f"// {facts['title']}"
    yield f"package {facts['namespace']}"
    yield ""
    yield _HEAD
    yield ""
    path = "path: String, loadMode: Int = Module.LOAD_MODE_MMAP"
    yield f"class {facts['class']}({path}) : Closeable {{"
    yield "    val module: Module = Module.load(path, loadMode)"
    yield ""
    yield "    override fun close() = module.destroy()"
    names = unique((camel(method["name"]) for method in facts["methods"]), _RESERVED)
    for name, method in zip(names, facts["methods"], strict=True):
        yield ""
        yield from _render_method(name, method)
    yield from _CHECKS.splitlines()


def _render_method(name: str, method: Json) -> Iterator[str]:
    label = json.dumps(method["name"])
    if method["constant"]:
        kind = method["outputs"][0]["kind"]
        yield f"    fun {name}(): {_TYPES[kind]} ="
        yield f"        module.execute({label})[0].{_GETTERS[kind]}"
        return
    symbols = find_symbols(method)
    arguments = unique((camel(item["name"]) for item in method["inputs"]), _RESERVED)
    places = find_places(method)
    outputs = [method["outputs"][place] for place in places]
    fields = unique((camel(output["name"]) for output in outputs), _RESERVED)
    record = f"{pascal(name)}Outputs"
    members = []
    for field, output in zip(fields, outputs, strict=True):
        members.append(
            f"        /** {output['text']} */ val {field}: {_TYPES[output['kind']]}"
        )
    yield f"    class {record}("
    yield ",\n".join(members)
    yield "    )"
    yield ""
    yield "    /**"
    for argument, item in zip(arguments, method["inputs"], strict=True):
        yield f"     * {argument}: {item['text']}"
    yield "     */"
    parameters = [
        f"{argument}: {_TYPES[item['kind']]}"
        for argument, item in zip(arguments, method["inputs"], strict=True)
        if item["kind"] != "fixed"
    ]
    yield f"    fun {name}({', '.join(parameters)}): {record} {{"
    yield f"        val symbols = LongArray({len(symbols)}) {{ -1 }}"
    for argument, item in zip(arguments, method["inputs"], strict=True):
        where = f'"{method["name"]}: {argument}", symbols'
        sizes = [_size(size, symbols) for size in item.get("sizes", ())]
        if item["kind"] == "tensor":
            dtype = f"DType.{DTYPES[item['dtype']]}"
            rows = f"arrayOf<LongArray>({', '.join(sizes)})"
            yield f"        checkTensor({argument}, {dtype}, {rows}, {where})"
        elif item["kind"] == "int":
            yield f"        checkSize({argument}, {sizes[0]}, {where})"
    values = [_pass(*pair) for pair in zip(arguments, method["inputs"], strict=True)]
    yield f"        val outputs = module.execute({', '.join([label, *values])})"
    read = [
        f"outputs[{place}].{_GETTERS[output['kind']]}"
        for place, output in zip(places, outputs, strict=True)
    ]
    yield f"        return {record}({', '.join(read)})"
    yield "    }"


def _size(size: Size, symbols: list[str]) -> str:
    least, most, expression = size
    upper = "Long.MAX_VALUE" if most is None else f"{most}L"
    place = symbols.index(expression) if is_symbol(expression) else -1
    return f"longArrayOf({least}L, {upper}, {place}L)"


def _pass(argument: str, item: Json) -> str:
    """Return the expression that passes an input to the runtime."""
    if item["kind"] != "fixed":
        return f"EValue.from({argument})"
    value = item["value"]
    if value is None:
        return "EValue.optionalNone()"
    # Kotlin doesn't widen an Int, and `EValue.from` takes a Long.
    suffix = "L" if type(value) is int else ""
    return f"EValue.from({json.dumps(value)}{suffix})"
