"""Call sites in TypeScript, on react-native-executorch's `Model`."""

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
from pipeline.features.call_sites.names import camel, unique
from pipeline.store.errors import PipelineError

Json = Mapping[str, Any]
DTYPES = {name: name for name in ("bool", "float32", "int32", "int64", "uint8")}
LACKS = ("data files", "shared state")
_TYPES = {
    "bool": "boolean",
    "float": "number",
    "int": "number",
    "str": "string",
    "tensor": "Tensor",
}
# Words of the language, and names of the generated code.
_RESERVED = """
arguments await break case catch class const constructor continue debugger default delete dispose do
else enum eval export extends false finally for function if implements import in instanceof
interface let model new null package private protected public return static super switch symbols
this throw true try typeof undefined var void while with yield
"""
_HEAD = """\
import { loadModel, tensor, type DType, type Model, type Tensor } from 'react-native-executorch';

type Size = readonly [least: number, most: number, symbol: number];

function checkSize(value: number, size: Size, name: string, symbols: number[]): void {
  const [least, most, symbol] = size;
  if (value < least || value > most) {
    throw new RangeError(`${name}: size ${value}, must be from ${least} to ${most}`);
  }
  if (symbol < 0) {
    return;
  }
  const bound = symbols[symbol] ?? -1;
  if (bound >= 0 && bound !== value) {
    throw new RangeError(`${name}: size ${value}, must be ${bound} as another one`);
  }
  symbols[symbol] = value;
}

function checkTensor(
  value: Tensor,
  dtype: DType,
  sizes: readonly Size[],
  name: string,
  symbols: number[]
): void {
  if (value.dtype !== dtype || value.shape.length !== sizes.length) {
    throw new TypeError(`${name}: is ${value.dtype} of rank ${value.shape.length}`);
  }
  sizes.forEach((size, place) => checkSize(value.shape[place] ?? 0, size, name, symbols));
}
"""


def render(facts: Json) -> Iterator[str]:
    """Yield the lines of a module; `facts` is the result of `verb.find_facts`."""
    yield f"// {facts['title']}"
    yield "// The caller disposes of the tensors that a method returns."
    yield _HEAD
    yield ""
    yield f"export class {facts['class']} {{"
    yield "  readonly model: Model;"
    yield ""
    yield "  /** @param path of the .pte on the phone, absolute */"
    yield "  constructor(path: string) {"
    yield "    this.model = loadModel(path);"
    yield "  }"
    yield ""
    yield "  dispose(): void {"
    yield "    this.model.dispose();"
    yield "  }"
    names = unique((camel(method["name"]) for method in facts["methods"]), _RESERVED)
    for name, method in zip(names, facts["methods"], strict=True):
        yield ""
        yield from _render_method(name, method)
    yield "}"


def _render_method(name: str, method: Json) -> Iterator[str]:
    label = json.dumps(method["name"])
    if method["constant"]:
        kind = _TYPES[method["outputs"][0]["kind"]]
        yield f"  {name}(): {kind} {{"
        yield f"    return this.model.execute({label}, [], [])[0] as {kind};"
        yield "  }"
        return
    symbols = find_symbols(method)
    arguments = unique((camel(item["name"]) for item in method["inputs"]), _RESERVED)
    outputs = [output for output in method["outputs"] if output["kind"] != "fixed"]
    fields = unique((camel(output["name"]) for output in outputs), _RESERVED)
    yield "  /**"
    for argument, item in zip(arguments, method["inputs"], strict=True):
        yield f"   * {argument}: {item['text']}"
    for field, output in zip(fields, outputs, strict=True):
        yield f"   * returns {field}: {output['text']}"
    yield "   */"
    parameters = [
        f"{argument}: {_TYPES[item['kind']]}"
        for argument, item in zip(arguments, method["inputs"], strict=True)
        if item["kind"] != "fixed"
    ]
    returned = "; ".join(
        f"{field}: {_TYPES[output['kind']]}"
        for field, output in zip(fields, outputs, strict=True)
    )
    named = f"inputs: {{ {'; '.join(parameters)} }}" if parameters else ""
    yield f"  {name}({named}): {{ {returned} }} {{"
    yield f"    const symbols: number[] = [{', '.join(['-1'] * len(symbols))}];"
    for argument, item in zip(arguments, method["inputs"], strict=True):
        where = f"'{name}: {argument}', symbols"
        sizes = [_size(size, symbols) for size in item.get("sizes", ())]
        if item["kind"] == "tensor":
            checked = f"inputs.{argument}, '{item['dtype']}', [{', '.join(sizes)}]"
            yield f"    checkTensor({checked}, {where});"
        elif item["kind"] == "int":
            yield f"    checkSize(inputs.{argument}, {sizes[0]}, {where});"
    values = [
        json.dumps(item["value"]) if item["kind"] == "fixed" else f"inputs.{argument}"
        for argument, item in zip(arguments, method["inputs"], strict=True)
    ]
    tensors = [output for output in method["outputs"] if output["kind"] == "tensor"]
    made = []
    for output in tensors:
        shape = ", ".join(_compute(size, symbols) for size in output["sizes"])
        made.append(f"tensor('{output['dtype']}', [{shape}])")
    yield f"    const outputs = [{', '.join(made)}];"
    yield "    try {"
    yield f"      const values = this.model.execute({label}, [{', '.join(values)}], outputs);"
    yield "      return {"
    places = find_places(method)
    for place, field, output in zip(places, fields, outputs, strict=True):
        yield f"        {field}: values[{place}] as {_TYPES[output['kind']]},"
    yield "      };"
    yield "    } catch (error) {"
    # Their memory is native, and no garbage collector frees it.
    yield "      outputs.forEach((output) => output.dispose());"
    yield "      throw error;"
    yield "    }"
    yield "  }"


def _size(size: Size, symbols: list[str]) -> str:
    least, most, expression = size
    place = symbols.index(expression) if is_symbol(expression) else -1
    return f"[{least}, {'Infinity' if most is None else most}, {place}]"


def _compute(size: Size, symbols: list[str]) -> str:
    """Return the expression for the exact size of an output, which its placeholder must have."""
    least, most, expression = size
    if least == most:
        return str(least)
    computed = translate(expression, symbols)
    if not computed:
        raise PipelineError(
            "typescript: the size of an output is computed in a way that only a call shows, and "
            "react-native-executorch must know it before"
        )
    return computed


def translate(expression: Any, symbols: list[str]) -> str:
    """Return a TypeScript expression for a size computed from inputs' sizes, or ""."""
    if isinstance(expression, int):
        return str(expression)
    if expression in symbols:
        return f"(symbols[{symbols.index(expression)}] ?? 0)"
    if not isinstance(expression, list):
        return ""
    function, *operands = expression
    parts = [translate(operand, symbols) for operand in operands]
    if not all(parts):
        return ""
    signs = {"Add": " + ", "Mul": " * "}
    if function in signs:
        return f"({signs[function].join(parts)})"
    functions = {"FloorDiv": "Math.floor({} / {})", "Max": "Math.max({}, {})"}
    functions |= {"CeilToInt": "Math.ceil({})", "Min": "Math.min({}, {})"}
    # SymPy's Max and Min take any number of operands, these templates two.
    if function in functions and functions[function].count("{}") == len(parts):
        return functions[function].format(*parts)
    return ""
