"""The names that a plugin needs to describe a backend: docs/guides/writing-a-backend.md.

Nothing here imports torch. Plugins are imported while the catalogue is being built, so these names
are taken directly from the modules that define them.
"""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.backends.delegate_runtime import DelegateError as DelegateError
from pipeline.backends.delegate_runtime import DelegateRuntime as DelegateRuntime
from pipeline.backends.delegate_runtime import Timing as Timing
from pipeline.backends.entry import Backend as Backend
from pipeline.backends.entry import CacheScope as CacheScope
from pipeline.backends.entry import Execution as Execution
from pipeline.backends.entry import Lowering as Lowering
from pipeline.backends.entry import Preprocessing as Preprocessing
from pipeline.backends.entry import Quantization as Quantization
from pipeline.backends.host import Host as Host
from pipeline.backends.host import Requirement as Requirement
from pipeline.backends.options import Options as Options
from pipeline.backends.quantize_options import QuantizeConfig as QuantizeConfig
from pipeline.backends.workspace_files import WorkspaceFiles as WorkspaceFiles
from pipeline.program.source_lines import describe_node as describe_node
