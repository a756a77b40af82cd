"""Call sites in Swift, on `Module` of ExecuTorch's Swift package."""

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
    "bool": "Bool",
    "float32": "Float",
    "float64": "Double",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "int8": "Int8",
    "uint8": "UInt8",
}
LACKS = ("shared state",)
_TYPES = {"bool": "Bool", "float": "Double", "int": "Int", "str": "String"}
# Words of the language, and names of the generated code.
_RESERVED = """
as associatedtype break case catch checkSize checkTensor class continue default defer deinit do else
enum extension fallthrough false fileprivate for func guard if import in init inout internal is let
module nil open operator outputs private protocol public repeat rethrows return self static struct
subscript super switch symbols throw throws true try typealias var where while
"""
_HEAD = """\
import ExecuTorch

/// A call that does not fit its method.
public struct {class}Error: Swift.Error, CustomStringConvertible {{
  public let description: String
}}

private typealias Size = (least: Int, most: Int, symbol: Int)

private func checkSize(_ value: Int, _ size: Size, _ name: String, _ symbols: inout [Int]) throws {{
  guard value >= size.least, value <= size.most else {{
    throw {class}Error(
      description: "\\(name): size \\(value), must be from \\(size.least) to \\(size.most)")
  }}
  guard size.symbol >= 0 else {{ return }}
  let bound = symbols[size.symbol]
  guard bound < 0 || bound == value else {{
    throw {class}Error(
      description: "\\(name): size \\(value), must be \\(bound) as another one")
  }}
  symbols[size.symbol] = value
}}

private func checkShape(
  _ shape: [Int], _ sizes: [Size], _ name: String, _ symbols: inout [Int]
) throws {{
  guard shape.count == sizes.count else {{
    throw {class}Error(description: "\\(name): has rank \\(shape.count)")
  }}
  for (value, size) in zip(shape, sizes) {{
    try checkSize(value, size, name, &symbols)
  }}
}}
"""


def render(facts: Json) -> Iterator[str]:
    """Yield the lines of a file; `facts` is the result of `verb.find_facts`."""
    yield f"// {facts['title']}"
    yield _HEAD.format_map(facts)
    yield ""
    yield f"public final class {facts['class']} {{"
    yield "  public let module: Module"
    yield ""
    if facts["data_files"]:
        yield f"  /// Loaded with {', '.join(facts['data_files'])}."
        yield "  public init(filePath: String, dataFilePaths: [String]) {"
        yield "    module = Module(filePath: filePath, dataFilePaths: dataFilePaths)"
    else:
        yield "  public init(filePath: String) {"
        yield "    module = Module(filePath: filePath)"
    yield "  }"
    names = unique((camel(method["name"]) for method in facts["methods"]), _RESERVED)
    for name, method in zip(names, facts["methods"], strict=True):
        yield ""
        yield from _render_method(name, method, f"{facts['class']}Error")
    yield "}"


def _render_method(name: str, method: Json, error: str) -> Iterator[str]:
    label = json.dumps(method["name"])
    if method["constant"]:
        kind = _TYPES[method["outputs"][0]["kind"]]
        yield f"  public func {name}() throws -> {kind} {{"
        # `execute` is generic: the annotation chooses its type.
        yield f"    let value: {kind} = try module.execute({label})"
        yield "    return value"
        yield "  }"
        return
    symbols = find_symbols(method)
    arguments = unique((camel(item["name"]) for item in method["inputs"]), _RESERVED)
    places = find_places(method)
    outputs = [method["outputs"][place] for place in places]
    fields = unique((camel(output["name"]) for output in outputs), _RESERVED)
    record = f"{pascal(name)}Outputs"
    yield f"  public struct {record} {{"
    for field, output in zip(fields, outputs, strict=True):
        yield f"    /// {output['text']}"
        yield f"    public let {field}: {_type(output)}"
    yield "  }"
    yield ""
    for argument, item in zip(arguments, method["inputs"], strict=True):
        yield f"  /// - {argument}: {item['text']}"
    parameters = [
        f"{argument}: {_type(item)}"
        for argument, item in zip(arguments, method["inputs"], strict=True)
        if item["kind"] != "fixed"
    ]
    yield f"  public func {name}({', '.join(parameters)}) throws -> {record} {{"
    yield f"    var symbols = [Int](repeating: -1, count: {len(symbols)})"
    for argument, item in zip(arguments, method["inputs"], strict=True):
        where = f'"{method["name"]}: {argument}", &symbols'
        sizes = [_size(size, symbols) for size in item.get("sizes", ())]
        if item["kind"] == "tensor":
            yield f"    try checkShape({argument}.shape, [{', '.join(sizes)}], {where})"
        elif item["kind"] == "int":
            yield f"    try checkSize({argument}, {sizes[0]}, {where})"
    values = [_pass(*pair) for pair in zip(arguments, method["inputs"], strict=True)]
    yield f"    let inputs: [ValueConvertible] = [{', '.join(values)}]"
    yield f"    let outputs = try module.execute({label}, inputs)"
    yield f"    guard outputs.count == {len(method['outputs'])} else {{"
    yield f'      throw {error}(description: "{method["name"]}: gives \\(outputs.count) outputs")'
    yield "    }"
    read = [
        f"{field}: try {_type(output)}(outputs[{place}])"
        for place, field, output in zip(places, fields, outputs, strict=True)
    ]
    yield f"    return {record}({', '.join(read)})"
    yield "  }"


def _type(item: Json) -> str:
    if item["kind"] == "tensor":
        return f"Tensor<{DTYPES[item['dtype']]}>"
    return _TYPES[item["kind"]]


def _size(size: Size, symbols: list[str]) -> str:
    least, most, expression = size
    place = symbols.index(expression) if is_symbol(expression) else -1
    return f"({least}, {'Int.max' if most is None else most}, {place})"


def _pass(argument: str, item: Json) -> str:
    """Return the expression that passes an input to the runtime."""
    if item["kind"] != "fixed":
        return argument
    return "Value()" if item["value"] is None else json.dumps(item["value"])
