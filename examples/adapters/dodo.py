from pte_pipeline.tasks import *
