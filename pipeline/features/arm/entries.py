"""TOSA, and Ethos-U and VGF, which lower to it first: executorch/backends/arm.

All three share a partitioner and a quantizer. Ethos-U then compiles with vela, VGF with the ML
SDK's model converter.
"""

from pipeline.features.arm import ethos_u, tosa, vgf

ENTRIES = (*ethos_u.ENTRIES, *vgf.ENTRIES, *tosa.ENTRIES)
