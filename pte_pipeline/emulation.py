"""`python -m pte_pipeline.emulation FOLDER` sets up Arm's Vulkan layers for a shell."""

import sys

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline()

from pipeline.features.arm.emulation import main as main

if __name__ == "__main__":
    main(sys.argv[1:])
