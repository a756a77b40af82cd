"""The schema of an archive's JSON as a table; a test compares it with torch's own schema.

`archive_grammar.py` checks documents against this table. It can't be generated from torch's schema
(`torch/_export/serde/schema.py`), which says only `str` where this table names the grammar of a
string. The grammars make an archive from a stranger safe to read, and are chosen field by field.
Everything else (classes, fields, types, enums, versions, the bytes of dtypes) is compared with the
installed torch, so a new field fails the test until somebody has decided what it may hold.
"""

from __future__ import annotations

SCHEMA_VERSION = (8, 20)

# A field whose name ends in `?` may be missing; one whose type ends in `?` may be null. `[T]` is a
# list, `{K:T}` a mapping whose keys follow the grammar K. A class whose name starts with `|` is a
# union: it has exactly one of its fields. Lowercase types are JSON's own types, and the grammars of
# `archive_grammar.py`.
SCHEMA: dict[str, dict[str, str]] = {
    "ExportedProgram": {
        "graph_module": "GraphModule",
        "opset_version": "{text:int}",
        "range_constraints": "{range:RangeConstraint}",
        "schema_version": "SchemaVersion",
        "verifiers?": "[text]",
        "torch_version?": "text",
        "guards_code?": "[text]",  # Python code, dropped when a program is loaded
    },
    "GraphModule": {
        "graph": "Graph",
        "signature": "GraphSignature",
        "module_call_graph": "[ModuleCallEntry]",
        "metadata?": "{text:text}",
        "treespec_namedtuple_fields?": "{text:NamedTupleDef}",
    },
    "RangeConstraint": {"min_val": "int?", "max_val": "int?"},
    "SchemaVersion": {"major": "int", "minor": "int"},
    "NamedTupleDef": {"field_names": "[text]"},
    "ModuleCallEntry": {"fqn": "path", "signature?": "ModuleCallSignature?"},
    "ModuleCallSignature": {
        "inputs": "[Argument]",
        "outputs": "[Argument]",
        "in_spec": "in_tree",
        "out_spec": "tree",
        "forward_arg_names?": "[name]?",
    },
    "Graph": {
        "inputs": "[Argument]",
        "outputs": "[Argument]",
        "nodes": "[Node]",
        "tensor_values": "{name:TensorMeta}",
        "sym_int_values": "{name:SymInt}",
        "sym_bool_values": "{name:SymBool}",
        "is_single_tensor_return?": "bool",
        "custom_obj_values?": "{name:CustomObjArgument}",
        "sym_float_values?": "{name:SymFloat}",
    },
    "Node": {
        "target": "operator",
        "inputs": "[NamedArgument]",
        "outputs": "[Argument]",
        "metadata": "{text:text}",
        "is_hop_single_tensor_return?": "bool?",
        "name?": "name?",
    },
    "NamedArgument": {"name": "parameter", "arg": "Argument", "kind?": "ArgumentKind?"},
    "|Argument": {
        "as_none": "bool",
        "as_tensor": "TensorArgument",
        "as_tensors": "[TensorArgument]",
        "as_int": "int",
        "as_ints": "[int]",
        "as_float": "float",
        "as_floats": "[float]",
        "as_string": "text",
        "as_strings": "[text]",
        "as_sym_int": "SymIntArgument",
        "as_sym_ints": "[SymIntArgument]",
        "as_scalar_type": "ScalarType",
        "as_memory_format": "MemoryFormat",
        "as_layout": "Layout",
        "as_device": "Device",
        "as_bool": "bool",
        "as_bools": "[bool]",
        "as_sym_bool": "SymBoolArgument",
        "as_sym_bools": "[SymBoolArgument]",
        "as_graph": "GraphArgument",
        "as_optional_tensors": "[OptionalTensorArgument]",
        "as_custom_obj": "CustomObjArgument",
        "as_operator": "operator",
        "as_sym_float": "SymFloatArgument",
        "as_sym_floats": "[SymFloatArgument]",
        "as_optional_tensor": "OptionalTensorArgument",
        "as_complex": "ComplexValue",
        "as_nested_tensors": "[[TensorArgument]]",
        "as_int_lists": "[[int]]",
        "as_string_to_argument": "{text:Argument}",
        "as_float_lists": "[[float]]",
    },
    "GraphArgument": {"name": "name", "graph": "Graph"},
    "CustomObjArgument": {"name": "object", "class_fqn": "object"},
    "ComplexValue": {"real": "float", "imag": "float"},
    "|SymIntArgument": {"as_name": "name", "as_int": "int"},
    "|SymFloatArgument": {"as_name": "name", "as_float": "float"},
    "|SymBoolArgument": {"as_name": "name", "as_bool": "bool"},
    "|OptionalTensorArgument": {"as_tensor": "TensorArgument", "as_none": "bool"},
    "TensorArgument": {"name": "name"},
    "TokenArgument": {"name": "name"},
    "TensorMeta": {
        "dtype": "ScalarType",
        "sizes": "[SymInt]",
        "requires_grad": "bool",
        "device": "Device",
        "strides": "[SymInt]",
        "storage_offset": "SymInt",
        "layout": "Layout",
    },
    "Device": {"type": "device", "index?": "int?"},
    "|SymInt": {"as_expr": "SymExpr", "as_int": "int"},
    "|SymBool": {"as_expr": "SymExpr", "as_bool": "bool"},
    "|SymFloat": {"as_expr": "SymExpr", "as_float": "float"},
    "SymExpr": {"expr_str": "size", "hint?": "SymExprHint?"},
    "|SymExprHint": {"as_int": "int", "as_bool": "bool", "as_float": "float"},
    "GraphSignature": {"input_specs": "[InputSpec]", "output_specs": "[OutputSpec]"},
    "|InputSpec": {
        "user_input": "UserInputSpec",
        "parameter": "InputToParameterSpec",
        "buffer": "InputToBufferSpec",
        "tensor_constant": "InputToTensorConstantSpec",
        "custom_obj": "InputToCustomObjSpec",
        "token": "InputTokenSpec",
        "constant_input": "InputToConstantInputSpec",
    },
    "UserInputSpec": {"arg": "Argument"},
    "InputToParameterSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "InputToBufferSpec": {
        "arg": "TensorArgument",
        "buffer_name": "path",
        "persistent": "bool",
    },
    "InputToTensorConstantSpec": {
        "arg": "TensorArgument",
        "tensor_constant_name": "path",
    },
    "InputToCustomObjSpec": {"arg": "CustomObjArgument", "custom_obj_name": "object"},
    "InputTokenSpec": {"arg": "TokenArgument"},
    "InputToConstantInputSpec": {"name": "parameter", "value": "ConstantValue"},
    "|ConstantValue": {
        "as_none": "bool",
        "as_int": "int",
        "as_float": "float",
        "as_string": "text",
        "as_bool": "bool",
    },
    "|OutputSpec": {
        "user_output": "UserOutputSpec",
        "loss_output": "LossOutputSpec",
        "buffer_mutation": "BufferMutationSpec",
        "gradient_to_parameter": "GradientToParameterSpec",
        "gradient_to_user_input": "GradientToUserInputSpec",
        "user_input_mutation": "UserInputMutationSpec",
        "token": "OutputTokenSpec",
        "parameter_mutation": "ParameterMutationSpec",
    },
    "UserOutputSpec": {"arg": "Argument"},
    "LossOutputSpec": {"arg": "TensorArgument"},
    "BufferMutationSpec": {"arg": "TensorArgument", "buffer_name": "path"},
    "ParameterMutationSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "GradientToParameterSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "GradientToUserInputSpec": {"arg": "TensorArgument", "user_input_name": "name"},
    "UserInputMutationSpec": {"arg": "TensorArgument", "user_input_name": "name"},
    "OutputTokenSpec": {"arg": "TokenArgument"},
    "PayloadConfig": {"config": "{path:PayloadMeta}"},
    "PayloadMeta": {
        "path_name": "text",
        "is_param": "bool",
        "use_pickle": "bool",
        "tensor_meta": "TensorMeta?",
    },
}

# The bytes per element of each dtype, keyed by its number in the schema's `ScalarType`.
ELEMENT_SIZES = {
    **dict.fromkeys((1, 2, 12, 29, 30, 31, 32, 33), 1),
    **dict.fromkeys((3, 6, 13, 28), 2),
    **dict.fromkeys((4, 7, 9, 34), 4),
    **dict.fromkeys((5, 8, 10, 35), 8),
    11: 16,
}
STRIDED = 7
ENUMS: dict[str, frozenset[int]] = {
    "ScalarType": frozenset({0, *ELEMENT_SIZES}),
    "Layout": frozenset(range(8)),
    "MemoryFormat": frozenset(range(5)),
    "ArgumentKind": frozenset(range(3)),
}
