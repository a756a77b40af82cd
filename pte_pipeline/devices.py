"""The names that a plugin needs to describe a device: docs/guides/writing-a-device.md."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.devices.bindings import Package as Package
from pipeline.devices.interface import DeclaredTensor as DeclaredTensor
from pipeline.devices.interface import Device as Device
from pipeline.devices.interface import DeviceError as DeviceError
from pipeline.devices.interface import FlatSignature as FlatSignature
from pipeline.devices.interface import PackageFiles as PackageFiles
from pipeline.devices.registry import devices as devices
